#!/usr/bin/env python3
"""The Python client's core without IO: bytes in, bytes and events out, under a clock that the test moves. Values, accumulation and both codecs too."""
import json
import pathlib
import random
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / folder) for folder in ('examples/python', 'tests/end_to_end')]
from althing_client import (AlthingError, Answer, Cancelled, CoreLost, Corrupt, Done, Extra, InvalidArgument, LikelyToken, Message, MessageStarted, Reply, Sampling, Session, Text,  # noqa: E402
                            TokenLogprob, TooLarge, Tool, Unavailable, VersionMismatch)
from althing_client.codec import Decoders, JsonCodec, Unreadable, codec_of  # noqa: E402
from althing_client.errors import CLASSES, error_of  # noqa: E402
from althing_client.messages import Accepted, Delta, delta_of, done_of  # noqa: E402
from althing_client.stream import Inbox, submit_members  # noqa: E402
from harness import ROOT, main  # noqa: E402

WELCOME = {'type': 'welcome', 'version': 1, 'server_instance': 'one', 'model': 'm', 'context_tokens_max': 9, 'frame_bytes_max': 5000, 'session_silence_ms_max': 15000}


class Bench:
    """A session and a clock."""

    def __init__(self, welcomed=True, **options):
        self.now = 100.0
        self.session = Session(JsonCodec(), self.now, **{'name': 'test', 'endpoint': 'tcp://there', 'silence_s': 5.0, **options})
        if welcomed:
            assert [message['type'] for message in self.sent()] == ['hello']
            self.hear(**WELCOME)

    def sent(self):
        frames = [json.loads(body) for _, body in self.session.outgoing]
        self.session.outgoing.clear()
        return frames

    def kinds(self):
        return [frame['type'] for frame in self.sent()]

    def hear(self, **message):
        self.session.receive([b'ALT1j', json.dumps(message).encode()], self.now)

    def delta(self, sequence, text='x', request_id='r'):
        self.hear(type='delta', request_id=request_id, sequence=sequence, choice=0, tokens=[], events=[{'type': 'text', 'index': 0, 'text': text}])

    def wait(self, seconds):
        """As an IO layer does: tick whenever it is time."""
        until = self.now + seconds
        while self.session.wake_at() <= until:
            self.now = max(self.now, self.session.wake_at()) + 1e-6
            self.session.tick(self.now)
        self.now = until

    def submit(self, request_id='r', **members):
        return self.session.submit(submit_members('hi', **members), self.now, request_id)

    def told(self):
        events = list(self.session.events)
        self.session.events.clear()
        return events

    def accepted(self, request_id='r'):
        self.hear(type='accepted', request_id=request_id, prompt_tokens=3, seed='18446744073709551615')


def opened(**members):
    bench = Bench()
    bench.submit(**members)
    bench.accepted()
    bench.sent()
    bench.told()
    return bench


def raises(kind, do):
    try:
        do()
    except kind as error:
        return error
    raise AssertionError(f'no {kind.__name__}')


def hello_comes_first_and_submits_wait_for_welcome():
    bench = Bench(welcomed=False)
    bench.submit()
    assert bench.kinds() == ['hello']
    bench.hear(**WELCOME)
    assert bench.kinds() == ['submit'] and bench.session.welcome.model == 'm'


def a_stream_is_told_once_and_in_order():
    bench = Bench()
    bench.submit()
    bench.accepted()
    bench.delta(1, 'a')
    bench.delta(1, 'a')
    bench.delta(2, 'b')
    bench.hear(type='done', request_id='r', sequence=3, reason='length', usage={'prompt_tokens': 3, 'completion_tokens': 2, 'preemptions': 1})
    bench.hear(type='done', request_id='r', sequence=3, reason='length', usage={})
    items = [item for _, item in bench.told()]
    assert items[0] == Accepted(3, 2 ** 64 - 1)
    assert [item.events[0].text for item in items[1:3]] == ['a', 'b']
    assert isinstance(items[3], Done) and items[3].usage.preemptions == 1 and len(items) == 4 and not bench.session.streams


def any_order_and_any_repeats_come_out_as_one_stream():
    """Against a server that keeps what it sent and answers resumes, over a connection that loses, repeats and shuffles."""
    for seed in range(200):
        chance = random.Random(seed)
        bench = opened(credit=0)
        story = [dict(type='delta', request_id='r', sequence=number, choice=0, events=[{'type': 'text', 'index': 0, 'text': f'{number} '}]) for number in range(1, 20)]
        story.append(dict(type='done', request_id='r', sequence=20, reason='stop', usage={}))
        under_way, heard = list(story), []
        for _ in range(2000):
            if 'r' not in bench.session.streams:
                break
            if under_way:
                message = under_way.pop(min(len(under_way) - 1, chance.choice([0, 0, 0, 1, 2])))
                for _ in range(chance.choice([0, 1, 1, 1, 2])):
                    bench.hear(**message)
            else:
                bench.wait(0.2)
                if not bench.session.streams['r'].order.retry_at:
                    bench.hear(**story[-1])  # whoever has lost the end hears of it no other way
            for frame in bench.sent():
                if frame['type'] == 'resume':
                    under_way = under_way[:chance.randrange(3)] + story[frame['last_sequence']:]
                elif frame['type'] == 'ping':
                    bench.hear(type='pong', nonce=frame['nonce'], server_instance='one')
            heard += [item for _, item in bench.told()]
        words = ''.join(item.events[0].text for item in heard if isinstance(item, Delta))
        assert words == ''.join(f'{number} ' for number in range(1, 20)), (seed, words)
        assert sum(isinstance(item, (Done, AlthingError)) for item in heard) == 1 and isinstance(heard[-1], Done), (seed, heard[-1])


def a_gap_is_asked_for_once_and_given_up_after_ten_times():
    bench = opened(credit=4)
    bench.delta(1)
    for late in (3, 4, 5):
        bench.delta(late)
    frames = bench.sent()
    assert [frame['type'] for frame in frames] == ['resume', 'grant'] and frames[0]['last_sequence'] == 1, frames
    asked = 1
    while 'r' in bench.session.streams:
        bench.hear(type='pong', nonce=1, server_instance='one')
        bench.wait(1.2)
        asked += sum(kind == 'resume' for kind in bench.kinds())
        assert asked < 30
    assert isinstance(bench.told()[-1][1], Corrupt) and asked == 10, asked


def another_connection_says_hello_and_goes_on():
    bench = opened(credit=4)
    bench.session.connected(bench.now)  # the first one
    assert bench.kinds() == []
    bench.delta(1)
    bench.submit('fresh')
    bench.sent()
    bench.now += 1
    bench.session.connected(bench.now)
    assert bench.kinds() == ['hello']
    bench.hear(**WELCOME)
    frames = bench.sent()
    assert [(frame['type'], frame['request_id']) for frame in frames] == [('resume', 'r'), ('grant', 'r'), ('submit', 'fresh')], frames
    assert frames[0]['last_sequence'] == 1 and frames[1]['credit'] == 4


def frames_that_went_before_hello_are_not_the_end():
    bench = opened()
    refusal = {'code': 'unavailable', 'message': 'say hello first', 'field': ''}
    bench.now += 1
    for _ in range(3):
        bench.hear(type='error', request_id='r', sequence=0, error=refusal)
        bench.hear(type='error', request_id='', sequence=0, error=refusal)
    assert bench.kinds() == ['hello'] and not bench.told()
    bench.hear(**WELCOME)
    assert bench.kinds()[0] == 'resume'
    bench.hear(type='error', request_id='r', sequence=0, error=refusal)  # now it is meant
    assert isinstance(bench.told()[0][1], Unavailable)


def a_starting_server_is_greeted_again():
    bench = Bench(welcomed=False)
    assert bench.kinds() == ['hello']
    for _ in range(3):
        bench.hear(type='error', request_id='', sequence=0, error={'code': 'unavailable', 'message': 'starting', 'field': ''})
        assert bench.kinds() == []
        bench.wait(0.11)
        assert bench.kinds() == ['hello']
    bench.hear(**WELCOME)
    assert bench.session.welcome


def not_found_is_the_loss_of_the_core_only_for_what_was_accepted():
    refusal = {'code': 'not_found', 'message': 'no such request', 'field': ''}
    bench = opened()
    bench.hear(type='error', request_id='r', sequence=0, error=refusal)
    assert isinstance(bench.told()[0][1], CoreLost)
    bench = Bench()
    bench.submit()
    bench.hear(type='error', request_id='r', sequence=0, error={**refusal, 'message': 'no such model'})
    assert bench.told()[0][1].code == 'not_found'
    bench = opened()
    bench.session.cancel('r')
    bench.hear(type='error', request_id='r', sequence=0, error=refusal)
    assert isinstance(bench.told()[0][1], Cancelled)


def credit_follows_consumption_half_a_window_at_a_time():
    bench = opened(credit=6)
    for number in range(1, 7):
        bench.delta(number)
    assert bench.sent() == []
    bench.session.consume('r')
    bench.session.consume('r')
    assert bench.sent() == []
    bench.session.consume('r')
    assert bench.sent() == [{'type': 'grant', 'request_id': 'r', 'credit': 3}]
    bench.session.consume('r', 3)
    assert bench.sent() == [{'type': 'grant', 'request_id': 'r', 'credit': 3}]
    bench.session.consume('gone')
    free = opened(credit=0)
    free.delta(1)
    free.session.consume('r')
    assert free.sent() == []


def an_inbox_counts_a_delta_when_the_reader_comes_back_behind_it():
    inbox = Inbox()
    inbox.push(Delta(1, 0, (MessageStarted(0, 0, 'assistant', 'final', '', ''), Text(0, 0, 'a'))))
    inbox.push(Delta(2, 0, ()))
    inbox.push(done_of({'sequence': 3, 'reason': 'stop', 'usage': {}}))
    steps = [inbox.take() for _ in range(3)]
    assert [consumed for _, consumed in steps] == [0, 0, 2] and steps[2][0] is None and inbox.over
    assert inbox.reply.text == 'a' and inbox.reply.done.reason == 'stop'


def silence_ends_streams_and_pongs_do_not():
    bench = opened()
    for _ in range(20):
        bench.wait(1)
        bench.hear(type='pong', nonce=1, server_instance='one')
    assert not bench.told()
    pings = bench.kinds()
    assert set(pings) == {'ping'} and 15 <= len(pings) <= 25, pings
    bench.wait(7)
    (request_id, error), = bench.told()
    assert request_id == 'r' and isinstance(error, Unavailable) and 'tcp://there' in error.message
    # The session is not over: a server that comes back is used again.
    bench.hear(type='pong', nonce=1, server_instance='one')
    bench.submit('again')
    assert 'submit' in bench.kinds()
    lone = Bench(welcomed=False)
    lone.wait(7)
    assert isinstance(lone.session.failure, Unavailable)


def pings_keep_to_what_the_server_allows():
    bench = Bench(welcomed=False)
    bench.hear(**{**WELCOME, 'session_silence_ms_max': 300})
    bench.sent()
    for _ in range(10):
        bench.wait(0.1)
        bench.hear(type='pong', nonce=1, server_instance='one')
    assert len(bench.kinds()) >= 9, bench.now


def versions_are_negotiated_by_name():
    for version, fine in ((0, False), (1, True), (2, False)):
        bench = Bench(welcomed=False)
        bench.submit()
        bench.hear(**{**WELCOME, 'version': version})
        assert bool(bench.session.failure) != fine
        if not fine:
            assert isinstance(bench.told()[0][1], VersionMismatch)
            raises(VersionMismatch, lambda bench=bench: bench.submit('other'))
    bench = opened()
    bench.session.receive([b'ALT2c', b''], bench.now)
    assert isinstance(bench.session.failure, VersionMismatch) and isinstance(bench.told()[0][1], VersionMismatch)
    bench = Bench(welcomed=False)
    bench.hear(type='error', request_id='', sequence=0, error={'code': 'version', 'message': 'too new', 'field': ''})
    assert isinstance(bench.session.failure, VersionMismatch)


def errors_of_the_session_after_hello_do_not_end_it():
    bench = opened()
    bench.hear(type='error', request_id='', sequence=0, error={'code': 'corrupt', 'message': 'what was that', 'field': ''})
    assert not bench.session.failure and not bench.told()


def unreadable_frames_ask_for_what_they_may_have_been():
    bench = opened()
    bench.delta(1)
    bench.told()
    bench.now += 1
    for parts in ([], [b''], [b'ALT1j'], [b'ALT1j', b'{'], [b'ALT1x', b'{}'], [b'ALT1j', b'{"type":"delta","request_id":"r"}'], [b'a', b'b', b'c', b'd']):
        bench.session.receive(parts, bench.now)
    assert bench.kinds().count('resume') == 1 and not bench.told()
    bench.delta(2)
    assert len(bench.told()) == 1


def cancelling():
    bench = opened()
    bench.session.cancel('r')
    bench.session.cancel('r')
    assert bench.kinds() == ['cancel']
    bench.delta(1)
    bench.hear(type='error', request_id='r', sequence=2, error={'code': 'cancelled', 'message': 'by the client', 'field': ''})
    assert [type(item) for _, item in bench.told()] == [Delta, Cancelled]
    bench.session.cancel('r')
    assert bench.kinds() == []
    # Nobody listens any more: it still ends, in silence, and over another connection it is cancelled again.
    bench.submit('quiet')
    bench.accepted('quiet')
    bench.session.cancel('quiet', abandon=True)
    bench.told(), bench.sent()
    bench.now += 1
    bench.session.connected(bench.now), bench.session.connected(bench.now)
    bench.hear(**WELCOME)
    assert 'cancel' in bench.kinds()
    bench.delta(1, request_id='quiet')
    bench.hear(type='error', request_id='quiet', sequence=2, error={'code': 'cancelled', 'message': '', 'field': ''})
    assert not bench.told() and not bench.session.streams


def ids_and_sizes_are_checked_before_anything_is_sent():
    bench = opened()
    assert raises(InvalidArgument, bench.submit).field == 'request_id'
    error = raises(TooLarge, lambda: bench.session.submit(submit_members('x' * 6000), bench.now))
    assert '5000' in error.message and bench.sent() == []
    first, second = (bench.session.submit(submit_members('hi'), bench.now) for _ in range(2))
    assert first != second


def submits_have_the_members_that_were_asked_for():
    members = submit_members([Message('user', 'hi'), {'role': 'assistant', 'content': 'ho'}], tools=[Tool('f', 'does', {'type': 'object'}), Tool('g')],
                             sampling=Sampling(temperature=0.5, n=2, more={'new_one': [1]}), effort='low', timeout_s=1.5, grammar={'regex': 'a+'}, tenant='t',
                             more={'later': 1})
    assert members == {'messages': [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'}], 'credit': 64, 'return_tokens': False,
                       'tools': [{'name': 'f', 'description': 'does', 'parameters': {'type': 'object'}}, {'name': 'g', 'description': ''}],
                       'sampling': {'temperature': 0.5, 'n': 2, 'new_one': [1]}, 'reasoning_effort': 'low', 'timeout_ms': 1500, 'grammar': {'regex': 'a+'}, 'tenant': 't',
                       'later': 1}, members
    assert submit_members([1, 2])['prompt_tokens'] == [1, 2]
    raises(InvalidArgument, lambda: submit_members([1, Message('user', 'x')]))


def answers_are_put_together():
    answer = Answer()
    events = [{'type': 'message_started', 'index': 0, 'role': 'assistant', 'channel': 'analysis'}, {'type': 'text', 'index': 0, 'text': 'hm'},
              {'type': 'message_started', 'index': 1, 'role': 'assistant', 'channel': 'commentary', 'recipient': 'functions.f'},
              {'type': 'text', 'index': 1, 'text': '{"a":'}, {'type': 'text', 'index': 1, 'text': '1}'}, {'type': 'message_ended', 'index': 1},
              {'type': 'message_started', 'index': 2, 'role': 'assistant', 'channel': 'final'}, {'type': 'text', 'index': 2, 'text': 'yes'}, {'type': 'later'}]
    for event in delta_of({'sequence': 1, 'events': events, 'tokens': [7], 'logprobs': [{'token': 7, 'logprob': -0.5, 'top': [[7, -0.5], [9, -1.25]]}], 'later': 3}).events:
        answer.hear(event)
    assert (answer.reasoning, answer.text, answer.tokens, answer.extra) == ('hm', 'yes', [7], [{'later': 3}])
    assert answer.logprobs == [TokenLogprob(7, -0.5, (LikelyToken(7, -0.5), LikelyToken(9, -1.25)))]
    call, = answer.tool_calls
    assert call.name == 'f' and call.parse() == {'a': 1}
    assert call.answer('ok').to_wire() == {'role': 'tool', 'name': 'functions.f', 'recipient': 'assistant', 'channel': 'commentary', 'content': 'ok'}
    assert answer.messages[1].to_wire() == {'role': 'assistant', 'recipient': 'functions.f', 'channel': 'commentary', 'content': '{"a":1}'}


def ends_say_their_stop_string_and_what_the_user_does_not_see():
    usage = {'prompt_tokens': 5, 'completion_tokens': 9, 'preemptions': 1, 'reasoning_tokens': 4}
    one = Reply(done=done_of({'sequence': 1, 'reason': 'stop', 'usage': usage, 'stop_string': 0}))
    assert (one.stop_string(), one.reasoning_tokens, one.done.usage.preemptions) == (0, 4, 1)
    ends = [{'reason': 'stop', 'completion_tokens': 1, 'preemptions': 0, 'stop_string': 1}, {'reason': 'length', 'completion_tokens': 8, 'preemptions': 0}]
    two = Reply(done=done_of({'sequence': 1, 'reason': 'length', 'usage': usage, 'choices': ends}))
    assert [two.stop_string(choice) for choice in range(3)] == [1, None, None]
    assert Reply().stop_string() is None and Reply().reasoning_tokens == 0
    members = Sampling(stop='x', stop_tokens=(1, 2), logit_bias={7: -1.5}, logprobs=0, repetition_penalty=1.1).to_wire()
    assert members == {'stop': ['x'], 'stop_tokens': [1, 2], 'logit_bias': {'7': -1.5}, 'logprobs': 0, 'repetition_penalty': 1.1}, members


def messages_take_the_tokens_that_they_were_made_of():
    answer = Answer()
    for channel in ('analysis', 'final'):
        answer.messages.append(Message('assistant', 'x', channel=channel))
    answer.tokens = [5, 6, 90, 1, 2, 7, 91]
    assert [message.to_wire().get('tokens') for message in answer.replayed({90, 91})] == [[5, 6, 90], [1, 2, 7, 91]]
    assert 'tokens' not in answer.messages[0].to_wire(), 'the answer itself stays as it is'
    for cut in ([5, 6, 90, 1, 2, 7], [5, 6, 90], [], [5, 90, 6, 90, 7, 91]):
        answer.tokens = cut
        assert answer.replayed({90, 91}) == answer.messages, cut


def what_is_not_known_is_harmless():
    delta = delta_of({'type': 'delta', 'request_id': 'r', 'sequence': 1, 'events': [{'type': 'later', 'x': {}}], 'tokens': [], 'new': 1, 'empty': []})
    assert delta.events == (Extra(0, {'new': 1}),)
    bench = opened()
    bench.hear(type='later', request_id='r', what=[])
    bench.hear(type='later')
    assert not bench.told() and not bench.sent()
    assert error_of('code_of_tomorrow', 'm').code == 'internal'


def every_error_code_of_the_protocol_has_a_class():
    page = (ROOT / 'docs/protocol.md').read_text()
    table = page[page.index('## Errors'):page.index('## Limits')]
    documented = {word.strip() for line in table.splitlines() if line.startswith('| ') for word in line.split('|')[1].split(',')} - {'code'}
    assert documented == set(CLASSES), documented ^ set(CLASSES)
    assert all(kind.hint for kind in CLASSES.values())


def the_readme_names_every_member_of_sampling():
    page = (ROOT / 'docs/protocol.md').read_text()
    sampling = page[page.index('**Sampling.**'):page.index('## Errors')]
    assert all(f'`{name}`' in sampling for name in Sampling.__dataclass_fields__ if name != 'more')


def decoders_read_by_the_header():
    decoders = Decoders(JsonCodec())
    assert decoders.decode([b'', b'ALT1j', b'{"type":"pong"}']) == {'type': 'pong'}
    assert decoders.decode([b'ALT3j', b''])['type'] == 'version'
    for parts in ([b'ALT1c', b''], [b'ALT1j', b'[]'], [b'ALT1j', b'[' * 100000], [b'ALT1j', b'{"type":1}'], [b'HTTP/', b'x']):
        raises(Unreadable, lambda parts=parts: decoders.decode(parts))
    raises(ValueError, lambda: codec_of('xml'))


if __name__ == '__main__':
    main(hello_comes_first_and_submits_wait_for_welcome, a_stream_is_told_once_and_in_order, any_order_and_any_repeats_come_out_as_one_stream,
         a_gap_is_asked_for_once_and_given_up_after_ten_times, another_connection_says_hello_and_goes_on, frames_that_went_before_hello_are_not_the_end,
         a_starting_server_is_greeted_again, not_found_is_the_loss_of_the_core_only_for_what_was_accepted, credit_follows_consumption_half_a_window_at_a_time,
         an_inbox_counts_a_delta_when_the_reader_comes_back_behind_it, silence_ends_streams_and_pongs_do_not, pings_keep_to_what_the_server_allows,
         versions_are_negotiated_by_name, errors_of_the_session_after_hello_do_not_end_it, unreadable_frames_ask_for_what_they_may_have_been, cancelling,
         ids_and_sizes_are_checked_before_anything_is_sent, submits_have_the_members_that_were_asked_for, answers_are_put_together, messages_take_the_tokens_that_they_were_made_of,
         ends_say_their_stop_string_and_what_the_user_does_not_see, what_is_not_known_is_harmless,
         every_error_code_of_the_protocol_has_a_class, the_readme_names_every_member_of_sampling, decoders_read_by_the_header, server=False)
