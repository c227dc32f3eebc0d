"""Cases about the connection: losing it, other servers, versions, silence, credit, cancelling, bytes that are no message."""
import time

from cases_streams import CASES, case, whole
from play import PATIENCE, ended, request, started, text

__all__ = ['CASES']


@case('never_resumes', 'new_client_id')
def a_lost_connection_is_made_anew_and_the_stream_goes_on(play):
    """The connection breaks in mid-stream: hello under the same name, then a resume behind the last message that came."""
    play.start()
    play.accept()
    play.delta([started(), text('before ')])
    play.heard('text')
    play.lose_connection()
    play.delta([text('meanwhile ')], send=False)
    resume = play.expect('resume', 'r1')
    assert resume['last_sequence'] == 1, resume
    assert play.count('hello') >= 2 and len(play.client_ids) == 1
    play.delta([text('after'), ended()])
    play.done()
    play.finish()
    whole(play, {0: 'before meanwhile after'})


@case('never_resumes')
def it_is_lost_again_and_again(play):
    """Five times, each time with something that was said meanwhile."""
    play.start()
    play.accept()
    for number in range(5):
        play.delta([started(), text(f'{number}')] if number == 0 else [text(f'{number}')])
        play.heard('text', count=2 * number + 1)
        play.lose_connection()
        play.delta([text('+')], send=False)
        play.expect('resume', 'r1')
        play.heard('text', count=2 * number + 2)
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: '0+1+2+3+4+'})


@case('swallows_refusals', 'tells_not_found')
def another_server_instance_does_not_know_the_stream(play):
    """What comes back is another server: `not_found` for what was accepted is the loss of the core, and the client says so."""
    play.start()
    play.accept()
    play.delta([started(), text('half')])
    play.heard('text')
    play.resends = False
    play.welcome['server_instance'] = 'mock-2'
    play.lose_connection()
    play.expect('resume', 'r1')
    play.refuse('not_found', 'r1', 'no such request')
    play.finish()
    assert play.end()['code'] == 'core_lost', play.end()
    whole(play, {0: 'half'})


@case('trusts_any_pong')
def a_pong_of_another_instance_is_answered_with_hello(play):
    """The connection seems to live, but somebody else answers: nothing of this session is known there."""
    play.start()
    play.accept()
    play.delta([started(), text('half')])
    play.heard('text')
    greeted = play.count('hello')
    play.welcome['server_instance'] = 'mock-2'
    play.until(lambda: play.count('hello') > greeted, 'hello to the other instance')
    play.expect('resume', 'r1')
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: 'half'})


@case('resumes_what_was_not_accepted')
def a_submit_that_was_never_accepted_is_sent_again(play):
    """The connection breaks before `accepted`: the same id again, since the server may have it or not."""
    play.start()
    play.lose_connection()
    play.ledgers.clear()
    again = play.expect('submit', 'r1')
    assert again['messages'] == [{'role': 'user', 'content': 'hello'}], again
    play.accept()
    play.delta([started(), text('once'), ended()])
    play.done()
    play.finish()
    whole(play, {0: 'once'})
    assert play.count('resume') == 0


@case('needs_accepted')
def accepted_may_come_late(play):
    """The first delta overtakes it. What the stream says is proof enough that the server has the request."""
    play.start()
    play.delta([started(), text('early')])
    play.heard('text')
    play.accept()
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: 'early'})


@case('any_version')
def a_server_of_a_version_that_is_too_new_is_refused(play):
    """It chose version 2 against all rules: no request may be sent to it."""
    play.welcome['version'] = 2
    play.start(submits=False)
    play.expect('hello')
    play.finish()
    assert play.heard('error', '')['code'] == 'version', play.lines
    assert play.count('submit') == 0


@case('ignores_session_errors')
def a_server_of_a_version_that_is_too_old_says_so(play):
    """Its answer to hello is the error `version`."""
    play.welcomes = False
    play.start(submits=False)
    play.expect('hello')
    play.refuse('version', message='the client speaks versions 1 to 1, this server 0 to 0')
    play.finish()
    assert play.heard('error', '')['code'] == 'version', play.lines


@case('reads_any_header')
def frames_of_another_form_are_refused_as_a_version(play):
    """A header ALT2: nothing behind it can be read."""
    play.welcomes = False
    play.start(submits=False)
    play.expect('hello')
    play.send_parts([b'ALT2j', b'{}'])
    play.finish()
    assert play.heard('error', '')['code'] == 'version', play.lines


@case('sends_anything')
def a_request_over_the_servers_limit_is_not_sent(play):
    """`frame_bytes_max` of welcome: the client says too_large by itself, and its other request is not disturbed."""
    play.welcome['frame_bytes_max'] = 2000
    play.start([request('big', content='x' * 5000), request('r1')], submits=False)
    play.expect('submit', 'r1')
    play.accept()
    play.delta([started(), text('small'), ended()])
    play.done()
    play.heard('error', 'big')
    play.finish()
    assert play.heard('error', 'big')['code'] == 'too_large'
    assert not any(frame.get('request_id') == 'big' for frame in play.frames)
    whole(play, {0: 'small'})


@case('dies_of_junk')
def bytes_that_are_no_message_do_no_harm(play):
    """Among deltas, in every form. Any of them may have been a message of the stream, so the client may resume; it must not lose or repeat anything."""
    play.start()
    play.accept()
    play.delta([started(), text('still ')])
    body = {'json': b'ALT1j', 'capnp': b'ALT1c'}[play.encoding]
    for parts in ([b''], [b'', b''], [b'HTTP/1.1', b'200'], [body], [body, b'']):
        play.send_parts(parts)
    play.delta([text('the ')])
    for parts in ([body, b'\xff' * 64], [body, b'{"type":'], [body, b'[' * 5000], [body, b'x', b'y', b'z'], [b'ALT1q', b'{}']):
        play.send_parts(parts)
    play.delta([text('same'), ended()])
    play.done()
    play.finish()
    whole(play, {0: 'still the same'})


@case('never_pings')
def a_quiet_client_pings(play):
    """More often than the server's session_silence_ms_max, while nothing is said."""
    play.welcome['session_silence_ms_max'] = allowed = int(600 * PATIENCE)
    play.start()
    play.accept()
    times = [time.monotonic()]
    for _ in range(4):
        play.expect('ping')
        times.append(play.heard_at)
    longest = max(later - earlier for earlier, later in zip(times, times[1:]))
    assert 1000 * longest < allowed, f'{1000 * longest:.0f} ms of silence, {allowed} allowed'
    play.delta([started(), text('a'), ended()])
    play.done()
    play.finish()


@case('waits_for_ever')
def a_silent_server_is_given_up(play):
    """Pings are not answered: the stream ends as unavailable within the silence that the client was told, a ping and a moment."""
    silence = 1.0 * PATIENCE
    play.start(silence_ms=int(1000 * silence))
    play.accept()
    play.delta([started(), text('half')])
    play.heard('text')
    play.pongs, since = False, time.monotonic()
    play.heard('error')
    waited = time.monotonic() - since
    play.finish()
    assert play.count('ping') > 0 and play.end()['code'] == 'unavailable', play.end()
    assert 0.5 * silence < waited < 2 * silence + 2 * PATIENCE, f'{waited:.2f} s'


@case('gives_up_on_quiet_streams')
def a_server_that_answers_pings_is_waited_for(play):
    """No word about the request for longer than the client's patience with silence: pongs are words enough."""
    silence = 0.8 * PATIENCE
    play.start(silence_ms=int(1000 * silence))
    play.accept()
    since = time.monotonic()
    play.until(lambda: time.monotonic() - since > 2.5 * silence, 'time passes')
    assert play.count('ping') >= 2 and not play.end(), play.end()
    play.delta([started(), text('at last'), ended()])
    play.done()
    play.finish()
    whole(play, {0: 'at last'})


@case('grants_on_receipt', 'never_grants')
def credit_is_given_for_what_was_consumed(play):
    """The client takes one event when it is told to; at no moment has it granted more than it has consumed, and the server runs through ten windows."""
    window, total = 4, 40
    play.start([request(credit=window)], step=True)
    play.accept()
    ledger, told, sent = play.ledgers['r1'], 0, 0

    def check():
        assert ledger.granted <= told, f'{ledger.granted} granted when the client was let past {told} events'
    while sent < total:
        while ledger.credit > 0 and sent < total:
            play.delta([text('x')] if sent else [started()])
            sent += 1
        # The client has an event in its hand and is told to go on; what it grants in the meantime is for what lies behind it.
        lines = len([line for line in play.lines if line['event'] in ('message_started', 'text')])
        play.until(lambda: len([line for line in play.lines if line['event'] in ('message_started', 'text')]) > told or lines > told, 'the client takes an event')
        check()
        told += 1
        play.say('next')
        play.pump()
        check()
        if ledger.credit == 0 and told >= sent:
            play.until(lambda: ledger.credit > 0, 'credit for what was consumed')
            check()
    play.done()
    for _ in range(total - told):
        play.say('next')
    play.finish()
    whole(play, {0: 'x' * (total - 1)})
    assert ledger.deltas == total and play.count('grant') >= total // window - 1


@case('grants_nothing_after_a_resume')
def credit_lasts_over_a_lost_connection(play):
    """Grants that were under way are lost with a connection: without a new window the stream would stall."""
    play.start([request(credit=2)])
    play.accept()
    play.delta([started(), text('0')])
    play.heard('text')
    ledger = play.ledgers['r1']
    for number in range(1, 4):
        play.lose_connection()
        ledger.window, ledger.granted = ledger.deltas, 0  # all that it had given is used up, or lost
        play.expect('resume', 'r1')
        ledger.resumes = 1000  # a window for each; how many is not the matter here
        play.until(lambda: ledger.credit > 0, 'a new window after the resume')
        play.delta([text(f'{number}')])
        play.heard('text', count=number + 1)
    ledger.granted += 4
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: '0123'})


@case('never_cancels', 'ends_twice')
def a_cancelled_stream_ends_once(play):
    """Deltas that were under way still come, then the error `cancelled`."""
    play.start([request(cancel_after=1)])
    play.accept()
    play.delta([started(), text('a')])
    play.expect('cancel', 'r1')
    play.delta([text('b')])
    play.end_with('cancelled')
    play.finish()
    assert play.end()['code'] == 'cancelled', play.end()
    assert play.text()[0] in ('a', 'ab')


@case('never_cancels', 'ends_twice')
def an_end_that_is_faster_than_the_cancel_counts(play):
    """`done` was under way: the stream ends with it, and the server's answer to the late cancel hurts nobody."""
    play.start([request(cancel_after=1), request('r2')])
    play.accept()
    play.delta([started(), text('a')])
    play.expect('cancel', 'r1')
    play.delta([ended()])
    play.done()
    play.refuse('not_found', 'r1', 'no such request')
    play.accept('r2')
    play.delta([started(), text('other'), ended()], 'r2')
    play.done('r2')
    play.finish()
    assert play.end()['event'] == 'done', play.end()
    whole(play, {0: 'other'}, 'r2')
