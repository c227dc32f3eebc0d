#!/usr/bin/env python3
"""A road between clients and a server that can be broken: forwards TCP from a port of its own to PORT, prints that port, and knows nothing of what it carries.

    proxy.py PORT [OWN_PORT]

Stopped (SIGSTOP), it is a network that swallows everything: connections stay, no FIN or RST is sent. Killed, it is a peer that is gone.
"""
import asyncio
import sys


async def pass_on(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main():
    async def on_client(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

    server = await asyncio.start_server(on_client, '127.0.0.1', int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
