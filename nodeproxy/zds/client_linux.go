package zds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Client is a proxy's half of a connection to the agent. Receive and Ack are called in turns, from one goroutine; Close may be
// called from any.
type Client struct {
	conn *net.UnixConn
}

// Dial connects to the agent's socket and says hello.
func Dial(ctx context.Context, path string) (*Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, path)
	if err != nil {
		return nil, fmt.Errorf("connect to the agent: %w", err)
	}
	c := &Client{conn: conn.(*net.UnixConn)} //nolint:forcetypeassert // that is what net returns for this network
	if _, err = conn.Write(marshalHello()); err != nil {
		return nil, errors.Join(fmt.Errorf("say hello to the agent: %w", err), conn.Close())
	}
	return c, nil
}

// Receive waits for the agent's next request. With an Add, and only then, comes the pod's network namespace; the caller
// closes it. It does not check that the file is one, see netnsexec.Open.
//
// The error is io.EOF when the agent has closed the connection. A packet that is no proper request is refused as Istio's
// ztunnel does: it is answered with a nack, and the connection is closed. After an error the proxy
// connects again.
func (c *Client) Receive() (Request, *os.File, error) {
	packet, files, err := c.packet()
	if err == nil && len(packet) == 0 {
		err = io.EOF
	}
	if err == nil {
		var r Request
		if r, err = parseRequest(packet); err == nil {
			err = r.check(len(files))
		}
		if err == nil && r.Kind == Add {
			return r, files[0], nil
		}
		if err == nil {
			return r, nil, nil
		}
	}
	for _, f := range files {
		_ = f.Close()
	}
	if errors.Is(err, errMalformed) {
		_, _ = c.conn.Write(marshalResponse(err.Error()))
		_ = c.conn.Close()
	}
	if errors.Is(err, io.EOF) {
		return Request{}, nil, io.EOF
	}
	return Request{}, nil, fmt.Errorf("receive from the agent: %w", err)
}

// check tells whether a request came with what belongs to it.
func (r Request) check(files int) error {
	switch {
	case r.Kind == Add && files != 1, r.Kind != Add && files != 0:
		return fmt.Errorf("%s: %w: it came with %d files", r.Kind, errMalformed, files)
	case r.Kind != SnapshotSent && r.UID == "":
		return fmt.Errorf("%s: %w: it names no pod", r.Kind, errMalformed)
	}
	return nil
}

// maxFiles bounds the files of a packet; one with more counts as cut off: the kernel's bound is 253 (SCM_MAX_FD).
const maxFiles = 4

// packet receives one, and the files that came with it.
func (c *Client) packet() (packet []byte, files []*os.File, err error) {
	packet, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, rn, flags, _, err := c.conn.ReadMsgUnix(packet, rights)
	if err != nil {
		return nil, nil, err
	}
	controls, err := unix.ParseSocketControlMessage(rights[:rn])
	for _, control := range controls {
		numbers, failed := unix.ParseUnixRights(&control)
		err = errors.Join(err, failed)
		for _, fd := range numbers { // close-on-exec, by net
			files = append(files, os.NewFile(uintptr(fd), "network namespace from the agent"))
		}
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: it is cut off", errMalformed)
	}
	return packet[:n], files, err
}

// Ack answers the request that was received last. An error refuses it, and its text is the reason; nil accepts it.
func (c *Client) Ack(refusal error) error {
	reason := ""
	if refusal != nil {
		if reason = refusal.Error(); reason == "" {
			reason = "refused"
		}
	}
	if _, err := c.conn.Write(marshalResponse(reason)); err != nil {
		return fmt.Errorf("answer the agent: %w", err)
	}
	return nil
}

// Close closes the connection. The agent counts the proxy as gone; the pods stay as they are until the proxy ends.
func (c *Client) Close() error { return c.conn.Close() }
