"""Signing in and out: a token becomes a cookie; every page asks here who is looking."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from advisor.dashboard.door.visits import IDLE, VisitBook
from advisor.dashboard.source import Person, Source
from advisor.errors import Forbidden


class SignInNeeded(Exception):
    """The page needs a signed-in person; the answer is a redirection to the sign-in page."""


@dataclass(frozen=True)
class Guest:
    """A signed-in person and the key that their forms carry."""

    person: Person
    form_key: str


class Door:
    """Lets people in, and says who they are."""

    def __init__(self, source: Source, visits: VisitBook, clock: Callable[[], datetime]) -> None:
        self._source = source
        self._visits = visits
        self._clock = clock

    @staticmethod
    def cookie_name(request: Request) -> str:
        """Over TLS the name carries `__Host-`, which browsers only accept for Secure cookies of this very host."""
        return "__Host-advisor" if request.url.scheme == "https" else "advisor"

    def sign_in(self, request: Request, response: Response, token: str) -> bool:
        """Open a visit when the token is a person's; set its cookie on `response`."""
        if self._source.identify(token) is None:
            return False
        self._visits.close(request.cookies.get(self.cookie_name(request)))
        response.set_cookie(
            self.cookie_name(request),
            self._visits.open(token, self._clock()),
            max_age=int(IDLE.total_seconds()),
            httponly=True,
            secure=request.url.scheme == "https",
            samesite="strict",
        )
        return True

    def sign_out(self, request: Request, response: Response) -> None:
        """End the visit and take its cookie back."""
        self._visits.close(request.cookies.get(self.cookie_name(request)))
        response.delete_cookie(
            self.cookie_name(request), httponly=True, secure=request.url.scheme == "https", samesite="strict"
        )

    def recognise(self, request: Request) -> Guest | None:
        """Return who is looking; None when nobody is signed in or the token has been revoked."""
        key = request.cookies.get(self.cookie_name(request))
        visit = self._visits.find(key, self._clock())
        if visit is None:
            return None
        person = self._source.identify(visit.token)
        if person is None:
            self._visits.close(key)
            return None
        return Guest(person, visit.form_key)

    def admit(self, request: Request) -> Guest:
        """Return who is looking. Raises SignInNeeded when nobody is signed in."""
        guest = self.recognise(request)
        if guest is None:
            raise SignInNeeded
        return guest

    def admit_form(self, request: Request, form_key: str) -> Guest:
        """Return who sent a form of ours. Raises Forbidden for a form that an earlier visit showed."""
        guest = self.admit(request)
        visit = self._visits.find(request.cookies.get(self.cookie_name(request)), self._clock())
        if visit is None or not visit.accepts(form_key):
            raise Forbidden(
                "This form belongs to an earlier visit, so nothing was done.",
                hint="Reload the page and try again.",
            )
        return guest
