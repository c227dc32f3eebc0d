#!/usr/bin/env python3
"""Knocks at a door with keys that nobody knows, again and again, until its standard input ends: flood.py ENDPOINT SERVER_PUBLIC_KEY."""
import select
import sys

import zmq

SOCKETS = 24


def knocker(context, endpoint, server_key):
    """A denied socket tries no more, so each is thrown away and made anew."""
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.curve_serverkey = server_key
    socket.curve_publickey, socket.curve_secretkey = KEY
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED)
    socket.connect(endpoint)
    return monitor, socket


KEY = zmq.curve_keypair()  # one for all: the server cannot know that, and making keys is not what is measured


def main():
    if {'-h', '--help'} & set(sys.argv[1:]):
        print(__doc__)
        return
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    endpoint, server_key = sys.argv[1], sys.argv[2].encode()
    context = zmq.Context()
    context.max_sockets = 10_000
    poller = zmq.Poller()
    sockets = {}
    for _ in range(SOCKETS):
        monitor, socket = knocker(context, endpoint, server_key)
        sockets[monitor] = socket
        poller.register(monitor, zmq.POLLIN)
    print('flooding', flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for monitor, _ in poller.poll(100):
            if monitor not in sockets:
                continue
            poller.unregister(monitor)
            socket = sockets.pop(monitor)
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)
            monitor, socket = knocker(context, endpoint, server_key)
            sockets[monitor] = socket
            poller.register(monitor, zmq.POLLIN)
    context.destroy(linger=0)


if __name__ == '__main__':
    main()
