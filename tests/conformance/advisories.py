"""Which known vulnerabilities the server's image would install: its lock file, looked up by pip-audit on pypi.org.

`make audit` runs this file, and a test asks the same. Exit codes: 0 none is known, 1 at least one is, 2 a package was
not looked up, 3 no advisory service answered.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import requests
from pip_audit._audit import Auditor
from pip_audit._dependency_source import RequirementSource
from pip_audit._service import (
    Dependency,
    PyPIService,
    ServiceError,
    SkippedDependency,
    VulnerabilityResult,
    VulnerabilityService,
)

LOCK = Path(__file__).resolve().parents[2] / "requirements-server.lock"
PYPI = "https://pypi.org/"
ANSWER_TIMEOUT_S = 15


@dataclass
class Audit:
    """What the service answered about the packages of one lock file."""

    looked_up: int = 0
    vulnerable: list[str] = field(default_factory=list)
    """One sentence for each known vulnerability."""
    not_looked_up: list[str] = field(default_factory=list)
    """One sentence for each package of which the service knows nothing, while it knows others."""
    silence: str = ""
    """Why the service did not answer, or not to the end."""

    def __str__(self) -> str:
        said = [*self.vulnerable, *self.not_looked_up, self.silence]
        number = f"{self.looked_up} packages looked up, {len(self.vulnerable)} known vulnerabilities"
        return "\n".join([line for line in said if line] + [number])

    @property
    def exit_code(self) -> int:
        if self.vulnerable:
            return 1
        if self.not_looked_up:
            return 2
        return 3 if self.silence else 0


def reach_pypi(cache: Path | None = None, address: str = PYPI) -> PyPIService:
    """The service that pip-audit asks, at PyPI's own address or at another one that stands for it."""
    service = PyPIService(cache_dir=cache, timeout=ANSWER_TIMEOUT_S)
    if address != PYPI:
        service.session.mount(PYPI, SentElsewhere(address))
    service.session.hooks["response"].append(demand_advisories)
    return service


class SentElsewhere(requests.adapters.HTTPAdapter):
    """What is asked of pypi.org is asked of a server at another address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def send(self, request: requests.PreparedRequest, **options: object) -> requests.Response:
        request.url = self.address.rstrip("/") + urlsplit(str(request.url)).path
        return super().send(request, **options)


def demand_advisories(response: requests.Response, **_: object) -> None:
    """An index that sends a package's data without advisories must not pass for one that knows of none."""
    if response.ok and not response.is_redirect and "vulnerabilities" not in response.json():
        raise ServiceError(f"{response.url} was answered without a list of vulnerabilities")


def audit(service: VulnerabilityService, lock: Path = LOCK) -> Audit:
    """Look up every package that the lock file has for this machine."""
    found = Audit()
    try:
        for package, vulnerabilities in list_answers(service, lock):
            if isinstance(package, SkippedDependency):
                found.not_looked_up.append(package.skip_reason)
                continue
            found.looked_up += 1
            found.vulnerable += [describe(package, one) for one in vulnerabilities]
    except (ServiceError, requests.RequestException) as failure:
        found.silence = f"The advisory service did not answer: {failure or repr(failure.__cause__)}"
    if found.not_looked_up and not found.looked_up and not found.silence:
        found.silence = (
            f"No advisory service answers here: each of {len(found.not_looked_up)} packages was not found"
        )
    if not found.looked_up:
        found.not_looked_up.clear()
    return found


def list_answers(
    service: VulnerabilityService, lock: Path
) -> Iterator[tuple[Dependency, list[VulnerabilityResult]]]:
    # With hashes the file is complete as it is: nothing is resolved, nothing installed.
    yield from Auditor(service).audit(RequirementSource([lock], require_hashes=True, disable_pip=True))


def describe(package: Dependency, found: VulnerabilityResult) -> str:
    names = ", ".join([found.id, *sorted(found.aliases)])
    mended = " or ".join(str(version) for version in found.fix_versions)
    cure = f"mended in {mended}" if mended else "no version mends it"
    return f"{package.name} {package.version}: {names}, {cure} ({found.description})"


if __name__ == "__main__":
    result = audit(reach_pypi())
    print(result)
    sys.exit(result.exit_code)
