#!/usr/bin/env python3
"""A client that is wrong on purpose: the Python one with one defect. Each case of the kit names defects, and must fail with any of them.

    wrong_client.py DEFECT|none

`none` passes every case, which shows that it is the defect that fails.
"""
import json
import os
import secrets
import sys

import python_client
from althing_client import messages, session, stream, stream_order
from althing_client.errors import Internal, error_of
from althing_client.messages import Delta, Extra
from althing_client.session import Session
from althing_client.stream_order import StreamOrder, Verdict

FAR = 1e18


def before(kind, name, change):
    """kind.name calls change(original, self, *arguments)."""
    original = getattr(kind, name)
    setattr(kind, name, lambda self, *arguments, **named: change(original, self, *arguments, **named))


def drops_text():
    def push(original, inbox, item):
        if not (isinstance(item, Delta) and item.sequence == 2):
            original(inbox, item)
    before(stream.Inbox, 'push', push)


def first_event_only():
    def push(original, inbox, item):
        original(inbox, Delta(item.sequence, item.choice, item.events[:1]) if isinstance(item, Delta) else item)
    before(stream.Inbox, 'push', push)


def ends_twice():
    for name in ('write_done', 'write_error'):
        original = getattr(python_client, name)
        setattr(python_client, name, lambda *arguments, original=original: (original(*arguments), original(*arguments)))


def no_dedupe():
    def on(original, order, sequence, now):
        return Verdict.DELIVER if sequence <= order.last else original(order, sequence, now)
    before(StreamOrder, 'on', on)


def ignores_gaps():
    def on(original, order, sequence, now):
        if sequence <= order.last:
            return Verdict.IGNORE
        order.last = sequence
        return Verdict.DELIVER
    before(StreamOrder, 'on', on)


def gives_up_when_busy():
    session.REFUSALS_MAX = 0


def ignores_choice():
    def delta_of(message):
        return messages.delta_of({**message, 'choice': 0})
    session.delta_of = delta_of


def one_stream_mind():
    def on_stream(original, self, request_id, opened, message, now):
        first = next(iter(self.streams))
        original(self, first, self.streams[first], message, now)
    before(Session, '_on_stream', on_stream)


def code_is_internal():
    session.failure_of = lambda message, request_id: Internal(message['message'], message['field'], request_id)


def drops_field():
    session.failure_of = lambda message, request_id: error_of(message['code'], message['message'], '', request_id)


def swallows_refusals():
    before(Session, '_on_refusal', lambda original, self, *arguments: None)


def strict_members():
    def push(original, inbox, item):
        if isinstance(item, Delta) and any(isinstance(event, Extra) for event in item.events):
            os._exit(3)
        original(inbox, item)
    before(stream.Inbox, 'push', push)


def crashes_on_unknown_kinds():
    def take(original, self, message, now):
        kinds = [event['type'] for event in message.get('events', [])]
        if message['type'] not in ('welcome', 'accepted', 'delta', 'done', 'error', 'pong', 'version') or not set(kinds) <= {'message_started', 'text', 'message_ended'}:
            os._exit(3)
        original(self, message, now)
    before(Session, '_take', take)


def corrupt_on_unknown_events():
    def take(original, self, message, now):
        if any(event['type'] not in ('message_started', 'text', 'message_ended') for event in message.get('events', [])):
            raise ValueError('an event of an unknown kind')
        original(self, message, now)
    before(Session, '_take', take)


def never_resumes():
    before(Session, '_ask_for', lambda original, self, request_id, opened, now: None if opened.accepted else original(self, request_id, opened, now))


def new_client_id():
    def connected(original, self, now):
        self.client_id = secrets.token_hex(16)
        original(self, now)
    before(Session, 'connected', connected)


def tells_not_found():
    def on_refusal(original, self, request_id, opened, error, now):
        self._tell(request_id, opened, error)
    before(Session, '_on_refusal', on_refusal)


def trusts_any_pong():
    before(Session, '_take', lambda original, self, message, now: None if message['type'] == 'pong' else original(self, message, now))


def resumes_what_was_not_accepted():
    submitted = set()

    def ask_for(original, self, request_id, opened, now):
        opened.accepted = opened.accepted or request_id in submitted
        submitted.add(request_id)
        original(self, request_id, opened, now)
    before(Session, '_ask_for', ask_for)


def needs_accepted():
    def on_stream(original, self, request_id, opened, message, now):
        if message['type'] == 'delta' and not opened.accepted:
            opened.order.on(message['sequence'], now)
        else:
            original(self, request_id, opened, message, now)
    before(Session, '_on_stream', on_stream)


def any_version():
    session.VERSION_MAX = 99


def ignores_session_errors():
    before(Session, '_on_session_error', lambda original, self, *arguments: None)


def reads_any_header():
    before(Session, '_take', lambda original, self, message, now: None if message['type'] == 'version' else original(self, message, now))


def sends_anything():
    original = session.welcome_of
    session.welcome_of = lambda message: original({**message, 'frame_bytes_max': 0})


def dies_of_junk():
    def ask(original, order, now):
        os._exit(3)
    before(stream_order.StreamOrder, 'ask', ask)


def never_pings():
    before(Session, '_ping_seconds', lambda original, self: FAR)


def waits_for_ever():
    before(Session, '_fall_silent', lambda original, self, now: setattr(self, '_asked', now))


def gives_up_on_quiet_streams():
    def tick(original, self, now):
        original(self, now)
        for request_id, opened in list(self.streams.items()):
            if now - opened.opened > self.silence_s:
                self._tell(request_id, opened, error_of('unavailable', 'nothing was said', '', request_id))
    before(Session, 'tick', tick)


def grants_on_receipt():
    consume = Session.consume

    def tell(original, self, request_id, opened, item):
        original(self, request_id, opened, item)
        if isinstance(item, Delta):
            consume(self, request_id)
    before(Session, '_tell', tell)
    Session.consume = lambda self, request_id, deltas=1: None


def never_grants():
    Session.consume = lambda self, request_id, deltas=1: None


def grants_nothing_after_a_resume():
    def ask_for(original, self, request_id, opened, now):
        window, opened.credit = opened.credit, 0
        original(self, request_id, opened, now)
        opened.credit = window
    before(Session, '_ask_for', ask_for)


def never_cancels():
    before(Session, 'cancel', lambda original, self, *arguments, **named: None)


if __name__ == '__main__':
    if sys.argv[1] != 'none':
        globals()[sys.argv[1]]()
    python_client.run(json.loads(sys.stdin.readline()))
