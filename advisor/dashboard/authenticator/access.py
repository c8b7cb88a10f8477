"""Signing in and out: a token becomes a cookie; every page asks here who is looking."""

import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from advisor.dashboard.source import Source
from advisor.errors import Forbidden, Unauthenticated, Unavailable
from advisor.services.tokens import Principal
from advisor.services.visits import IDLE, close_visit, find_visit, mark_visit, open_visit


class SignInNeeded(Exception):
    """The page needs a signed-in person; the answer is a redirection to the sign-in page."""


@dataclass(frozen=True)
class SignedIn:
    """A signed-in person and the key that the forms of their visit carry."""

    person: Principal
    form_key: str


class Authenticator:
    """Lets people in, and says who they are."""

    def __init__(
        self, source: Source, new_secret: Callable[[], str], take_link: Callable[[str], str | None]
    ) -> None:
        """`new_secret` returns a fresh unguessable string: the cookie of a visit.

        `take_link` returns the token that the secret of a one-time link stands for, and uses the link up.
        """
        self._take_link = take_link
        self._source = source
        self._new_secret = new_secret

    @staticmethod
    def cookie_name(request: Request) -> str:
        """Over TLS the name carries `__Host-`, which browsers only accept for Secure cookies of this very host."""
        return "__Host-advisor" if request.url.scheme == "https" else "advisor"

    def sign_in(self, request: Request, response: Response, token: str) -> bool:
        """Open a visit when the token is a person's; set its cookie on `response`."""
        key = self._new_secret()
        try:
            self._source.change(open_visit, key, token, self._source.clock())
        except Unauthenticated:
            return False
        self._close(request)
        response.set_cookie(
            self.cookie_name(request),
            key,
            max_age=int(IDLE.total_seconds()),
            httponly=True,
            secure=request.url.scheme == "https",
            samesite="strict",
        )
        return True

    def enter(self, request: Request, response: Response, secret: str) -> bool:
        """Open a visit for who has a one-time link."""
        token = self._take_link(secret)
        return token is not None and self.sign_in(request, response, token)

    def sign_out(self, request: Request, response: Response) -> None:
        """End the visit and take its cookie back."""
        self._close(request)
        response.delete_cookie(
            self.cookie_name(request), httponly=True, secure=request.url.scheme == "https", samesite="strict"
        )

    def recognise(self, request: Request) -> SignedIn | None:
        """Return who is signed in; None without a sign-in, or once its token has been revoked."""
        key = request.cookies.get(self.cookie_name(request), "")
        now = self._source.clock()
        if not key or (found := self._source.read(find_visit, key, now)) is None:
            return None
        person, is_due = found
        if is_due:
            # A database that cannot be written to may still be read.
            with suppress(Unavailable):
                self._source.change(mark_visit, key, person, now)
        # Made from the cookie, which no page and no script can read: other sites know neither.
        return SignedIn(person, sha256(f"form {key}".encode()).hexdigest())

    def admit(self, request: Request) -> SignedIn:
        """Return who is signed in. Raises SignInNeeded where `recognise` finds none."""
        signed_in = self.recognise(request)
        if signed_in is None:
            raise SignInNeeded
        return signed_in

    def admit_form(self, request: Request, form_key: str) -> SignedIn:
        """Return who sent a form of ours. Raises Forbidden for a form that an earlier visit showed."""
        signed_in = self.admit(request)
        if not hmac.compare_digest(signed_in.form_key.encode(), form_key.encode()):
            raise Forbidden(
                "This form belongs to an earlier visit, so nothing was done.",
                hint="Reload the page and try again.",
            )
        return signed_in

    def admit_administrator(self, request: Request, form_key: str | None = None) -> SignedIn:
        """Return which administrator looks, or sent a form of ours. Raises Forbidden for everybody else."""
        signed_in = self.admit(request) if form_key is None else self.admit_form(request, form_key)
        if not signed_in.person.may_administer:
            raise Forbidden(
                f"Only administrators may do that, and {signed_in.person.name} is a {signed_in.person.role.value}.",
                hint="Ask an administrator for what you need.",
            )
        return signed_in

    def _close(self, request: Request) -> None:
        if key := request.cookies.get(self.cookie_name(request)):
            self._source.change(close_visit, key)
