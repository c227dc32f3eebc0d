#!/usr/bin/env python3
"""A conversation end to end: many at once equal to each alone, readiness and numbers, credit, resume, drain, and the command line as a client."""
import os
import re
import signal
import subprocess
import sys
import time

from harness import BINARY, PATIENCE, TINY, Client, Server, alive, ask, conversations, main, wait_for


def sixty_four_chats_at_once_equal_their_lone_runs():
    cases = conversations(64)
    with Server() as server, Client(server.endpoint) as client:
        for number, case in enumerate(cases):
            ask(client, f'alone-{number}', case)
            client.finish()
        for number, case in enumerate(cases):
            ask(client, f'together-{number}', case)
        client.finish()
        for number, case in enumerate(cases):
            alone, together = client.streams[f'alone-{number}'], client.streams[f'together-{number}']
            assert alone.tokens == together.tokens, (number, alone.tokens, together.tokens)
            assert alone.text == together.text, (number, alone.text, together.text)
            assert alone.end['type'] == together.end['type'] == 'done', (alone.end, together.end)
            assert alone.tokens == case['completion_ids'], f'conversation {number} differs from the reference'
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        assert server.metric('althing_layer_rank_tokens_total') > 0


def four_ranks_answer_as_one():
    cases = conversations(8)
    with Server(ranks=4) as server, Client(server.endpoint) as client:
        for number, case in enumerate(cases):
            ask(client, f'{number}', case)
        client.finish()
        wrong = [number for number, case in enumerate(cases) if client.streams[f'{number}'].tokens != case['completion_ids']]
        assert not wrong, wrong


def readiness_and_liveness_tell_the_truth():
    with Server() as server:
        assert server.get('/live')[0] == 200
        wait_for('ready', server.ready, 2)
        assert server.get('/nothing')[0] == 404
        rank = server.children()['rank0']
        os.kill(rank, signal.SIGSTOP)
        wait_for('a stopped rank makes the server not ready', lambda: not server.ready(), 3)
        assert server.get('/live')[0] == 200
        wait_for('ready again, by itself', server.ready, 5)
        assert server.children()['rank0'] != rank, 'a rank that stopped has another in its place'


def same_seed_same_text_and_credit_is_obeyed():
    case = conversations(1)[0]
    with Server() as server, Client(server.endpoint) as client:
        sampling = {'temperature': 1.0, 'seed': 7, 'completion_tokens_max': 60}
        client.submit('a', case['messages'], sampling=sampling)
        client.submit('b', case['messages'], sampling=sampling)
        client.finish()
        assert client.streams['a'].tokens == client.streams['b'].tokens
        client.submit('credit', case['messages'], sampling=sampling, credit=2)
        deltas = []
        while len(deltas) < 2:
            message = client.receive()
            if message['type'] == 'delta':
                deltas.append(message)
        quiet = time.monotonic() + 0.5
        while time.monotonic() < quiet:
            message = client.receive(0.1)
            assert message is None or message['type'] != 'delta', 'a delta without credit'
        client.send('grant', request_id='credit', credit=1000)
        for message in deltas:
            client.streams['credit'].hear(message)
        client.finish()
        assert client.streams['credit'].tokens == client.streams['a'].tokens


def what_the_model_sees_of_earlier_reasoning_is_the_operator_s_to_say():
    """Two finished turns with a word of reasoning each: all of it, the later one's (the reference's rule drops only before the first answer), or none."""
    turn = [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'channel': 'analysis', 'content': 'hm'}, {'role': 'assistant', 'channel': 'final', 'content': 'b'}]
    lengths = []
    for policy in ('drop_finished_turns', 'upstream', 'keep'):
        with Server('--reasoning-history', policy, ranks=1) as server, Client(server.endpoint) as client:
            client.submit('history', [*turn, *turn, {'role': 'user', 'content': 'c'}], sampling={'completion_tokens_max': 1})
            client.finish()
            lengths.append(client.streams['history'].end['usage']['prompt_tokens'])
    assert lengths[1] - lengths[0] == lengths[2] - lengths[1] > 0, lengths


def a_client_that_reconnects_resumes_without_a_gap():
    case = conversations(1)[0]
    with Server() as server:
        first = Client(server.endpoint)
        ask(first, 'r', case)
        while not first.streams['r'].tokens:
            first.step()
        second = Client(server.endpoint, hello=False)
        second.client_id = first.client_id
        second.hello()
        second.streams['r'] = first.streams['r']
        first.close()
        second.send('resume', request_id='r', last_sequence=second.streams['r'].sequence)
        second.finish()
        assert second.streams['r'].tokens == case['completion_ids']
        # The same id again gives the same stream again, not a second run.
        second.submit('r', case['messages'])
        second.finish()
        assert second.streams['r'].tokens == case['completion_ids']
        assert server.metric('althing_requests_accepted_total') == 1
        second.close()


def cancel_and_timeout_end_streams_and_free_pages():
    case = conversations(1)[0]
    forever = {'completion_tokens_max': 1500, 'ignore_stop': True}
    with Server() as server, Client(server.endpoint) as client:
        client.submit('c', case['messages'], sampling=forever)
        client.submit('t', case['messages'], sampling=forever, timeout_ms=300)
        while not client.streams['c'].tokens:
            client.step()
        client.send('cancel', request_id='c')
        client.finish()
        assert client.streams['c'].end['error']['code'] == 'cancelled', client.streams['c'].end
        assert client.streams['t'].end['error']['code'] == 'deadline', client.streams['t'].end
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def sigterm_drains_and_ends_with_zero():
    case = conversations(1)[0]
    with Server() as server, Client(server.endpoint) as client:
        ask(client, 'd', case)
        while not client.streams['d'].tokens:
            client.step()
        children = server.children()
        server.process.send_signal(signal.SIGTERM)
        client.finish()
        assert client.streams['d'].tokens == case['completion_ids']
        assert server.process.wait(10 * PATIENCE) == 0
        assert not any(alive(pid) for pid in children.values())


def what_a_drain_cannot_finish_is_told():
    """Time runs out (once), or the second signal comes (once): every open stream ends with the typed error, and the server with 0."""
    for signals, drain_seconds in ((1, 1), (2, 60)):
        with Server('--drain-seconds', str(drain_seconds)) as server, Client(server.endpoint) as client:
            for number, case in enumerate(conversations(8)):
                client.submit(f'{number}', case['messages'], sampling={'completion_tokens_max': 1900, 'ignore_stop': True}, credit=2 if number == 7 else 0)
            wait_for('tokens', lambda: client.step() or all(stream.tokens for stream in client.streams.values()))
            server.process.send_signal(signal.SIGTERM)
            wait_for('it drains', lambda: 'drain live_requests=8' in server.log(), 5)
            began = time.monotonic()
            if signals == 2:
                server.process.send_signal(signal.SIGTERM)
            code = wait_for('the server ends', lambda: client.step(0.001) or server.process.poll() is not None and [server.process.poll()], 70)
            seconds = time.monotonic() - began
            # What it said last may still wait to be read here.
            wait_for('every stream has an end', lambda: client.step() or not client.open(), 10)
            print(f'  {signals} signals: ended after {seconds:.2f} s')
            assert code == [0] and seconds < (2 + (drain_seconds if signals == 1 else 0)) * PATIENCE, (code, seconds)
            for key, stream in client.streams.items():
                assert stream.end['type'] == 'error' and stream.end['error']['code'] == 'draining', (key, stream.end)
                assert 'stop' in stream.end['error']['message'], stream.end


def chat_and_generate_answer():
    question = next(case for case in conversations(200) if len(case['messages']) == 2 and case['group'] == 'facts')['messages'][1]['content']
    with Server() as server:
        chat = subprocess.run([BINARY, 'chat', '--endpoint', server.endpoint, '--colour', 'never', '--once', question],
                              capture_output=True, text=True, timeout=30 * PATIENCE)
        assert chat.returncode == 0 and chat.stdout.strip(), chat
    generate = subprocess.run([BINARY, 'generate', TINY, question, '--colour', 'never', '--ranks', '2'], capture_output=True, text=True, timeout=30 * PATIENCE)
    assert generate.returncode == 0 and 'step_failed' not in generate.stderr, generate
    assert generate.stdout == chat.stdout, (generate.stdout, chat.stdout)


def ranks_of_one_process_end_without_a_failure():
    """When a request has ended another step is on its way, which every rank ends before any of them goes."""
    for ranks, count in ((2, 4), (4, 2), (1, 1)):
        for number in range(count):
            words = [BINARY, 'generate', TINY, 'hello there', '--max-tokens', 5 + number, '--ranks', ranks, '--colour', 'never', '--log-level', 'info']
            run = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=30 * PATIENCE)
            assert run.returncode == 0 and run.stdout.strip(), run
            assert 'request_finished' in run.stderr, 'the log is not there'
            assert not re.search(r'step_failed|device_lost|epoch_failed', run.stderr), run.stderr


def python_examples_chat_and_call_a_tool():
    examples = TINY.parents[1] / 'python'
    with Server() as server:
        for script, words in (('chat.py', ['What', 'is', '12', '+', '30?']), ('tool.py', [])):
            run = subprocess.run([sys.executable, examples / script, '--endpoint', server.endpoint, *words], capture_output=True, text=True, timeout=60 * PATIENCE)
            assert run.returncode == 0 and run.stdout.strip(), (script, run)
            assert script != 'chat.py' or '42' in run.stdout, run.stdout
            assert script != 'tool.py' or 'functions.' in run.stdout, run.stdout
    gone = subprocess.run([sys.executable, examples / 'chat.py', '--endpoint', server.endpoint, 'hello'], capture_output=True, text=True, timeout=60 * PATIENCE)
    assert gone.returncode != 0 and gone.stderr.strip(), gone


def in_process_serves_many_at_once():
    cases = conversations(16)
    with Server('--in-process') as server, Client(server.endpoint) as client:
        for number, case in enumerate(cases):
            ask(client, f'{number}', case)
        client.finish(300)
        wrong = [number for number, case in enumerate(cases) if client.streams[f'{number}'].tokens != case['completion_ids']]
        assert not wrong, wrong
        assert server.ready()
    assert server.process.returncode == 0, server.process.returncode


if __name__ == '__main__':
    main(sixty_four_chats_at_once_equal_their_lone_runs, what_the_model_sees_of_earlier_reasoning_is_the_operator_s_to_say, four_ranks_answer_as_one, readiness_and_liveness_tell_the_truth,
         same_seed_same_text_and_credit_is_obeyed, a_client_that_reconnects_resumes_without_a_gap, cancel_and_timeout_end_streams_and_free_pages,
         sigterm_drains_and_ends_with_zero, what_a_drain_cannot_finish_is_told, chat_and_generate_answer,
         ranks_of_one_process_end_without_a_failure, python_examples_chat_and_call_a_tool, in_process_serves_many_at_once)
