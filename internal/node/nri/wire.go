package nri

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/meshcni/meshcni/internal/node/protofields"
)

// One connection carries two streams, as frames of a number and a length; each stream has ttrpc's messages.
const (
	pluginStream  = 1 // the runtime asks
	runtimeStream = 2 // we ask

	frameHeader   = 8
	messageHeader = 10
	// maxMessage bounds a message of ttrpc, and so what of a stream is kept, in bytes.
	maxMessage = 4 << 20
	// maxWritten bounds what goes into one frame: the runtime's half reads each into a buffer of that size.
	maxWritten = 4096

	requestType  = 1
	responseType = 2
)

// message is one of ttrpc.
type message struct {
	stream uint32 // of the connection's two
	id     uint32
	typ    byte
	body   []byte
}

// reader takes the connection's messages apart.
type reader struct {
	conn    net.Conn
	buffers [3][]byte // by stream: what is not a whole message yet
	begun   time.Duration
}

// partial reports whether a message has begun and not ended.
func (r *reader) partial() bool {
	return len(r.buffers[pluginStream])+len(r.buffers[runtimeStream]) > 0
}

// next returns the messages that the next frame ends. Once a frame or a message has begun, the rest has to come within the reader's bound.
func (r *reader) next() (whole []message, err error) {
	var header [frameHeader]byte
	if r.partial() {
		_ = r.conn.SetReadDeadline(time.Now().Add(r.begun))
	}
	if _, err := io.ReadFull(r.conn, header[:1]); err != nil {
		return nil, err
	}
	_ = r.conn.SetReadDeadline(time.Now().Add(r.begun))
	if _, err := io.ReadFull(r.conn, header[1:]); err != nil {
		return nil, err
	}
	stream, size := binary.BigEndian.Uint32(header[:4]), binary.BigEndian.Uint32(header[4:])
	if size > messageHeader+maxMessage {
		return nil, fmt.Errorf("a frame of %d bytes, and at most %d are read", size, messageHeader+maxMessage)
	}
	if stream != pluginStream && stream != runtimeStream {
		_, err := io.CopyN(io.Discard, r.conn, int64(size))
		return nil, err
	}
	had := len(r.buffers[stream])
	buffer := append(r.buffers[stream], make([]byte, size)...)
	if _, err := io.ReadFull(r.conn, buffer[had:]); err != nil {
		return nil, err
	}
	for len(buffer) >= messageHeader {
		length := binary.BigEndian.Uint32(buffer)
		if length > maxMessage {
			return nil, fmt.Errorf("a message of %d bytes, and at most %d are read", length, maxMessage)
		}
		end := messageHeader + int(length)
		if len(buffer) < end {
			break
		}
		whole = append(whole, message{stream: stream, id: binary.BigEndian.Uint32(buffer[4:]), typ: buffer[8], body: buffer[messageHeader:end:end]})
		buffer = buffer[end:]
	}
	if len(buffer) == 0 {
		buffer = nil // which lets go of what the messages had
	}
	r.buffers[stream] = buffer
	return whole, nil
}

// encode returns a message in frames.
func encode(m message) []byte {
	text := binary.BigEndian.AppendUint32(nil, uint32(len(m.body))) //nolint:gosec // ours are short
	text = binary.BigEndian.AppendUint32(text, m.id)
	text = append(append(text, m.typ, 0), m.body...)
	var frames []byte
	for len(text) > 0 {
		part := text[:min(len(text), maxWritten)]
		text = text[len(part):]
		frames = binary.BigEndian.AppendUint32(frames, m.stream)
		frames = binary.BigEndian.AppendUint32(frames, uint32(len(part))) //nolint:gosec // at most maxWritten
		frames = append(frames, part...)
	}
	return frames
}

// request is one of ttrpc.
type request struct {
	service, method string
	payload         []byte
	timeout         time.Duration // zero: none
}

func (q request) encode() []byte {
	b := protofields.AppendString(nil, 1, q.service)
	b = protofields.AppendString(b, 2, q.method)
	b = protofields.AppendMessage(b, 3, q.payload)
	return protofields.AppendVarint(b, 4, uint64(q.timeout)) //nolint:gosec // positive
}

func decodeRequest(b []byte) (q request, err error) {
	err = protofields.Each(b, func(number protofields.Number, f protofields.Field) (err error) {
		switch number {
		case 1:
			err = f.String(&q.service)
		case 2:
			err = f.String(&q.method)
		case 3:
			q.payload, err = f.Bytes()
		case 4:
			var nanoseconds uint64
			nanoseconds, err = f.Varint()
			q.timeout = max(0, time.Duration(nanoseconds)) //nolint:gosec // what is no time is none
		}
		return err
	})
	return q, err
}

// The codes of gRPC that an answer may have.
const (
	codeUnknown       = 2
	codeInvalid       = 3
	codeUnimplemented = 12
)

// refusal is an answer's error.
func refusal(code uint64, text string) []byte {
	return protofields.AppendMessage(nil, 1, protofields.AppendString(protofields.AppendVarint(nil, 1, code), 2, text))
}

// decodeResponse returns an answer's error.
func decodeResponse(b []byte) (refused string, err error) {
	err = protofields.Each(b, func(number protofields.Number, f protofields.Field) error {
		if number != 1 {
			return nil
		}
		body, err := f.Bytes()
		if err != nil {
			return err
		}
		var code uint64
		var text string
		err = protofields.Each(body, func(number protofields.Number, f protofields.Field) (err error) {
			switch number {
			case 1:
				code, err = f.Varint()
			case 2:
				err = f.String(&text)
			}
			return err
		})
		if code != 0 {
			refused = fmt.Sprintf("%s (code %d)", text, code)
		}
		return err
	})
	return refused, err
}

// configuration has the fields of Configure that count here.
type configuration struct {
	name, version, nri string
	timeout            time.Duration
}

func decodeConfigure(b []byte) (c configuration, err error) {
	err = protofields.Each(b, func(number protofields.Number, f protofields.Field) (err error) {
		switch number {
		case 2:
			err = f.String(&c.name)
		case 3:
			err = f.String(&c.version)
		case 5:
			var milliseconds uint64
			milliseconds, err = f.Varint()
			c.timeout = time.Duration(min(milliseconds, uint64(maxTimeout/time.Millisecond))) * time.Millisecond //nolint:gosec // bounded
		case 6:
			err = f.String(&c.nri)
		}
		return err
	})
	return c, err
}

// maxTimeout bounds what a runtime may say of its patience.
const maxTimeout = time.Hour

// container has the fields of a container that count here.
type container struct {
	pod   string
	state uint64
}

// The states of a container that a runtime may still be making, or that has ended.
const (
	stateCreated = 1
	stateStopped = 4
)

// body has the fields that the messages about pods share, under other numbers.
type body struct {
	event      uint64
	pods       []Pod
	containers []container
	more       bool
}

// numbers are those of a message's fields.
type numbers struct{ event, pod, container, more protofields.Number }

func (n numbers) decode(b []byte) (all body, err error) {
	err = protofields.Each(b, func(number protofields.Number, f protofields.Field) (err error) {
		var raw []byte
		switch number {
		case n.event:
			all.event, err = f.Varint()
		case n.pod:
			if raw, err = f.Bytes(); err == nil {
				var p Pod
				p, err = decodePod(raw)
				all.pods = append(all.pods, p)
			}
		case n.container:
			if raw, err = f.Bytes(); err == nil {
				var c container
				c, err = decodeContainer(raw)
				all.containers = append(all.containers, c)
			}
		case n.more:
			var more uint64
			more, err = f.Varint()
			all.more = more != 0
		}
		return err
	})
	return all, err
}

func decodePod(b []byte) (p Pod, err error) {
	err = protofields.Each(b, func(number protofields.Number, f protofields.Field) (err error) {
		var text string
		switch number {
		case 1:
			err = f.String(&p.ID)
		case 2:
			err = f.String(&p.Name)
		case 3:
			err = f.String(&p.UID)
		case 4:
			err = f.String(&p.Namespace)
		case 6:
			var raw []byte
			if raw, err = f.Bytes(); err == nil {
				err = p.annotate(raw)
			}
		case 7:
			err = f.String(&p.Handler)
		case 8:
			var raw []byte
			if raw, err = f.Bytes(); err == nil {
				err = p.linux(raw)
			}
		case 10:
			err = f.String(&text)
			if addr, bad := netip.ParseAddr(text); err == nil && bad == nil {
				p.Addrs = append(p.Addrs, addr.Unmap().WithZone(""))
			}
		}
		return err
	})
	return p, err
}

func (p *Pod) annotate(b []byte) error {
	var key, value string
	err := protofields.Each(b, func(number protofields.Number, f protofields.Field) error {
		switch number {
		case 1:
			return f.String(&key)
		case 2:
			return f.String(&value)
		}
		return nil
	})
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[key] = value
	return err
}

// linux reads which namespaces the pod has of its own. A list without one of type "network" means the host's; none at all, that it is not known.
func (p *Pod) linux(b []byte) error {
	return protofields.Each(b, func(number protofields.Number, f protofields.Field) error {
		if number != 5 {
			return nil
		}
		raw, err := f.Bytes()
		if err != nil {
			return err
		}
		var kind, path string
		err = protofields.Each(raw, func(number protofields.Number, f protofields.Field) error {
			switch number {
			case 1:
				return f.String(&kind)
			case 2:
				return f.String(&path)
			}
			return nil
		})
		if kind == "network" {
			p.Network, p.NetNS = NetworkOwn, path
		} else if p.Network == NetworkUnknown {
			p.Network = NetworkHost
		}
		return err
	})
}

func decodeContainer(b []byte) (c container, err error) {
	err = protofields.Each(b, func(number protofields.Number, f protofields.Field) (err error) {
		switch number {
		case 2:
			err = f.String(&c.pod)
		case 4:
			c.state, err = f.Varint()
		}
		return err
	})
	return c, err
}
