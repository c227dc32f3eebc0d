"""Cases about what a stream says: order, gaps, choices, errors, things of later versions. Each names the defects of wrong_client.py that it must catch."""
from play import ended, request, started, text

CODES = ('invalid_argument', 'not_found', 'corrupt', 'unsupported', 'too_large', 'busy', 'draining', 'cancelled', 'deadline', 'slow_reader', 'rank_lost', 'core_lost',
         'unavailable', 'version', 'nonfinite', 'io', 'internal')
CASES = []


def case(*wrong):
    """Registers a case with the defects that it must catch."""
    def keep(function):
        CASES.append((function, wrong))
        return function
    return keep


def whole(play, words, request_id='r1', choice=0):
    heard = play.text(request_id, choice)
    assert heard == words, f'{request_id}, choice {choice}: the client heard {heard}, the server said {words}'


@case('drops_text', 'ends_twice')
def a_stream_is_told_in_order(play):
    """Reasoning, a call and the answer, token ids beside them, one end."""
    play.start()
    play.accept()
    play.delta([started(0, 'analysis'), text('Let me see. ', 0)], tokens=[1, 2])
    play.delta([text('Æ—日本 🙂', 0), ended(0)], tokens=[3])
    play.delta([started(1, 'commentary', 'functions.look'), text('{"a":1}', 1), ended(1), started(2), text('42', 2)])
    play.delta([ended(2)])
    play.done()
    play.finish()
    whole(play, {0: 'Let me see. Æ—日本 🙂', 1: '{"a":1}', 2: '42'})
    assert play.heard('accepted')['prompt_tokens'] == 5 and str(play.heard('accepted')['seed']) == '7'
    call = play.heard('message_started', count=2)
    assert (call['index'], call['channel'], call['recipient']) == (1, 'commentary', 'functions.look'), call
    ids = [line['tokens'] for line in play.lines if line['event'] == 'tokens']
    assert sum(ids, []) == [1, 2, 3], ids
    assert play.end()['reason'] == 'stop' and play.end()['usage']['completion_tokens'] == 3, play.end()


@case('first_event_only')
def cuts_say_nothing(play):
    """The same text a character at a time, and then many events in one delta."""
    play.start([request(credit=4)])
    play.accept()
    play.delta([started(0, 'analysis')])
    for character in 'one by one':
        play.delta([text(character)])
    play.delta([])
    play.delta([text('!'), ended(), *(event for index in range(1, 20) for event in (started(index), text('a', index), text('b', index), ended(index)))])
    play.done()
    play.finish()
    whole(play, {0: 'one by one!', **{index: 'ab' for index in range(1, 20)}})
    assert play.ledgers['r1'].deltas == 13 and play.count('grant') > 0


@case('no_dedupe')
def what_was_seen_before_is_dropped(play):
    """Deltas that come again, one at once and all of them later."""
    play.start()
    play.accept()
    first = play.delta([started(), text('once ')])
    play.send(first)
    second = play.delta([text('and only once')])
    for again in (first, second, second, first):
        play.send(again)
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: 'once and only once'})


@case('ignores_gaps')
def a_gap_is_closed_by_a_resume(play):
    """A delta is lost on the way: the client asks for what follows the last one that it has."""
    play.start()
    play.accept()
    play.delta([started(), text('a')])
    play.delta([text('b')], send=False)
    play.delta([text('c')])
    resume = play.expect('resume', 'r1')
    assert resume['last_sequence'] == 1, resume
    play.delta([text('d'), ended()])
    play.done()
    play.finish()
    whole(play, {0: 'abcd'})


@case('ignores_gaps')
def a_lost_end_is_asked_for_when_a_later_message_shows_it(play):
    """Two in a row are lost, the last delta among them."""
    play.start()
    play.accept()
    play.delta([started(), text('a')])
    play.delta([text('b')], send=False)
    play.delta([text('c'), ended()], send=False)
    play.done()
    assert play.expect('resume', 'r1')['last_sequence'] == 1
    play.finish()
    whole(play, {0: 'abc'})


@case('ignores_gaps')
def what_comes_out_of_order_goes_out_in_order(play):
    """1, 3, 2, 4: whether the client keeps what is early or asks again is its own affair."""
    play.start()
    play.accept()
    play.delta([started(), text('a')])
    second = play.delta([text('b')], send=False)
    play.delta([text('c')])
    play.send(second)
    play.delta([text('d'), ended()])
    play.done()
    play.finish()
    whole(play, {0: 'abcd'})


@case('gives_up_when_busy')
def a_resume_that_is_refused_as_busy_is_repeated(play):
    """A server takes no two resumes at once; the client waits a little and asks again."""
    play.start()
    play.accept()
    play.delta([started(), text('a')])
    play.resends = False
    play.delta([text('b')], send=False)
    play.delta([text('c'), ended()])
    play.expect('resume', 'r1')
    play.refuse('busy', 'r1', 'this request was resumed just now; wait 50 ms')
    play.expect('resume', 'r1')
    play.resends = True
    play.refuse('busy', 'r1', 'this request was resumed just now; wait 50 ms')
    play.expect('resume', 'r1')
    play.done()
    play.finish()
    whole(play, {0: 'abc'})


@case('ignores_choice')
def two_choices_are_kept_apart(play):
    """Interleaved deltas, each choice with messages 0, 1 … of its own; one end with a reason for each, one of them an error."""
    play.start()
    play.accept()
    play.delta([started(0), text('left')], choice=0, tokens=[1])
    play.delta([started(0, 'analysis'), text('right')], choice=1, tokens=[9])
    play.delta([text(' side'), ended()], choice=0)
    play.delta([ended(), started(1), text('other', 1)], choice=1, tokens=[8])
    error = {'code': 'nonfinite', 'message': 'the model computed NaN', 'field': ''}
    ends = [{'reason': 'stop', 'completion_tokens': 1, 'preemptions': 0}, {'reason': 'error', 'completion_tokens': 2, 'preemptions': 0, 'error': error}]
    play.done(reason='error', choices=ends)
    play.finish()
    whole(play, {0: 'left side'})
    whole(play, {0: 'right', 1: 'other'}, choice=1)
    ids = [(line['choice'], line['tokens']) for line in play.lines if line['event'] == 'tokens']
    assert ids == [(0, [1]), (1, [9]), (1, [8])], ids
    assert [end['reason'] for end in play.end()['choices']] == ['stop', 'error'], play.end()


@case('one_stream_mind')
def streams_of_one_connection_are_kept_apart(play):
    """Three requests at once; one fails, one has a gap, and the others do not notice."""
    play.start([request('r1'), request('r2'), request('r3')])
    for name in ('r1', 'r2', 'r3'):
        play.accept(name)
    play.delta([started(), text('first')], 'r1')
    play.delta([started(), text('second')], 'r2')
    play.delta([started(), text('third')], 'r3')
    play.delta([text(' lost')], 'r2', send=False)
    play.delta([text(' found'), ended()], 'r2')
    play.end_with('deadline', 'r3')
    play.delta([ended()], 'r1')
    play.done('r1')
    assert play.expect('resume', 'r2')['last_sequence'] == 1
    play.done('r2')
    play.finish()
    whole(play, {0: 'first'}, 'r1')
    whole(play, {0: 'second lost found'}, 'r2')
    whole(play, {0: 'third'}, 'r3')
    assert play.end('r3')['code'] == 'deadline' and play.count('resume') == 1


@case('code_is_internal', 'drops_field')
def errors_are_told_by_their_class(play):
    """Each code as the last message of a stream, with its sentence and its field; what a client does not know counts as internal."""
    names = [f'e-{code}' for code in CODES]
    play.start([request(name) for name in names])
    for name, code in zip(names, CODES):
        play.accept(name)
        play.end_with(code, name, f'why {code}', f'field.{code}')
    play.finish()
    for name, code in zip(names, CODES):
        end = play.end(name)
        assert (end['event'], end['code'], end['message'], end['field']) == ('error', code, f'why {code}', f'field.{code}'), end


@case('code_is_internal', 'swallows_refusals')
def a_submit_is_refused(play):
    """Errors with the number 0, which are no part of a stream: nothing was accepted, and the other request goes on."""
    play.start([request('bad'), request('big'), request('full'), request('r1')])
    play.refuse('invalid_argument', 'bad', 'top_p is wrong', 'sampling.top_p')
    play.refuse('too_large', 'big', '9 over 8', 'messages')
    play.refuse('busy', 'full', 'too many requests')
    play.accept()
    play.delta([started(), text('fine'), ended()])
    play.done()
    play.finish()
    assert [play.end(name)['code'] for name in ('bad', 'big', 'full')] == ['invalid_argument', 'too_large', 'busy']
    assert play.end('bad')['field'] == 'sampling.top_p'
    whole(play, {0: 'fine'})


@case('strict_members')
def members_of_a_later_version_are_ignored(play):
    """Every object of every message has members that nobody knows."""
    play.later = True
    play.start()
    play.accept()
    play.delta([started(), text('as before')])
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: 'as before'})


@case('code_is_internal')
def members_of_a_later_version_in_an_error_are_ignored(play):
    play.later = True
    play.start()
    play.accept()
    play.end_with('deadline', message='too late')
    play.finish()
    assert (play.end()['code'], play.end()['message']) == ('deadline', 'too late'), play.end()


@case('crashes_on_unknown_kinds')
def messages_of_a_kind_that_nobody_knows_are_ignored(play):
    """About the session, and about the request."""
    play.start()
    play.send({'type': 'later'})
    play.accept()
    play.delta([started(), text('as before')])
    play.send({'type': 'later', 'request_id': 'r1'})
    play.delta([ended()])
    play.done()
    play.finish()
    whole(play, {0: 'as before'})


@case('crashes_on_unknown_kinds', 'corrupt_on_unknown_events')
def events_of_a_kind_that_nobody_knows_lose_nothing_in_silence(play):
    """A client may pass over the event, or end the stream as `unsupported`: it must not hang, and must not tell a shorter text as whole."""
    play.start()
    play.accept()
    play.delta([started(), text('as ')])
    play.delta([{'type': 'later', 'index': 0}, text('before')])
    play.delta([ended()])
    play.done()
    play.finish()
    if play.end()['event'] == 'error':
        assert play.end()['code'] == 'unsupported', play.end()
    else:
        whole(play, {0: 'as before'})
