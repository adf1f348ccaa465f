"""Which language a code names."""

from __future__ import annotations

_NAMES = (
    "en eng, de deu ger, fr fra fre, es spa, it ita, pt por, nl nld dut, cs ces cze, sk slk slo, pl pol, ru rus, "
    "uk ukr, sv swe, da dan, no nor, nb nob, nn nno, hu hun, tr tur, ro ron rum, el ell gre, hi hin, ja jpn, ko kor, "
    "zh zho chi cmn yue lzh, th tha, lo lao, km khm, my mya bur, bo bod tib"
)
_SHORT = {name: names.split()[0] for names in _NAMES.split(",") for name in names.split()}


def primary_language(code: str) -> str:
    """The code of two letters, where there is one: zh of zh-Hant-HK, ZH, zh_TW, zho and zho_Hans."""
    code = code.lower().replace("_", "-").partition("-")[0]
    return _SHORT.get(code, code)
