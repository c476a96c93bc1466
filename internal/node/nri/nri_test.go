package nri

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshcni/meshcni/internal/node/protofields"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter refuses each container, and counts what it is told.
type counter struct{ run, gated atomic.Int64 }

func (*counter) Synchronize(context.Context, []Pod, time.Time) {}
func (c *counter) RunPodSandbox(context.Context, Pod)          { c.run.Add(1) }
func (*counter) RemovePodSandbox(Pod)                          {}
func (c *counter) CreateContainer(context.Context, Pod) error {
	c.gated.Add(1)
	return assert.AnError
}

// said is a request of the runtime.
func said(id uint32, method string, payload []byte) []byte {
	return encode(message{stream: pluginStream, id: id, typ: requestType, body: request{service: "nri.pkg.api.v1alpha1.Plugin", method: method, payload: payload}.encode()})
}

// Whatever the runtime says, the client ends or goes on, answers no container's request with a yes that the handler has not given, and keeps
// within its bounds.
func FuzzSession(f *testing.F) {
	pod := protofields.AppendMessage(nil, 1, protofields.AppendMessage(protofields.AppendString(protofields.AppendString(nil, 1, "s1"), 10, "10.0.0.1"), 8,
		protofields.AppendMessage(nil, 5, protofields.AppendString(protofields.AppendString(nil, 1, "network"), 2, "/run/netns/a"))))
	configure := said(1, "Configure", protofields.AppendVarint(protofields.AppendString(protofields.AppendString(nil, 2, "containerd"), 3, "v2.4.2"), 5, 2000))
	for _, text := range [][]byte{
		nil, configure, said(3, "Synchronize", pod), said(5, "RunPodSandbox", pod), said(7, validation, pod), said(9, creation, nil), said(11, "Other", pod),
		said(13, "StateChange", protofields.AppendMessage(protofields.AppendVarint(nil, 1, 1), 2, pod)), {0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 9, 0, 0, 0, 0},
		bytes.Join([][]byte{configure, said(3, "Synchronize", pod), said(5, "RunPodSandbox", pod), said(7, validation, pod)}, nil),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		ours, theirs := net.Pipe()
		handler := &counter{}
		c := New(Options{Name: "meshcni", Index: "90", Handler: handler, Gate: true})
		s := &session{Client: c, begun: time.Now()}
		answered := make(chan []message)
		go func() {
			var all []message
			for r := (&reader{conn: theirs, begun: time.Minute}); ; {
				got, err := r.next()
				if err != nil {
					answered <- all
					return
				}
				all = append(all, got...)
			}
		}()
		ended := make(chan error)
		go func() { ended <- s.on(context.Background(), ours) }()
		_, _ = theirs.Write(text)
		_ = theirs.Close()
		assert.Error(t, <-ended)
		c.working.Wait()
		all := <-answered
		refused := 0
		for _, m := range all {
			if m.typ != responseType {
				continue
			}
			_, err := decodeResponse(m.body)
			assert.NoError(t, err, "what we say is well-formed")
			refused++
		}
		assert.LessOrEqual(t, handler.run.Load()+handler.gated.Load(), int64(len(text)/frameHeader+1))
		assert.LessOrEqual(t, refused, len(text)+1)
	})
}

// What is encoded for the runtime is in frames that its half has buffers for.
func TestFrames(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 3*maxWritten)
	frames := encode(message{stream: runtimeStream, id: 7, typ: responseType, body: long})
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	go func() {
		for _, b := range frames { // one byte at a time
			_, _ = theirs.Write([]byte{b})
		}
		_ = theirs.Close()
	}()
	r := &reader{conn: ours, begun: time.Minute}
	var all []message
	for range 4 {
		got, err := r.next()
		assert.NoError(t, err)
		all = append(all, got...)
	}
	assert.Equal(t, []message{{stream: runtimeStream, id: 7, typ: responseType, body: long}}, all)
	assert.Nil(t, r.buffers[runtimeStream])
}

func TestValidates(t *testing.T) {
	for c, want := range map[configuration]bool{
		{name: "containerd", version: "v2.4.2", nri: "v0.12.3"}: true,
		{name: "containerd", version: "2.2.0-rc.1"}:             true,
		{name: "containerd", version: "v2.1.9", nri: "v0.8.0"}:  false,
		{name: "containerd", version: "2.1.9", nri: "unknown"}:  false,
		{name: "containerd", version: "v2.3.0", nri: "(devel)"}: true,
		{name: "CRI-O", version: "1.34.0"}:                      false,
		{name: "CRI-O", version: "1.36.0", nri: "v0.11.0"}:      true,
		{name: "containerd", version: "newest"}:                 false,
		{}:                                                      false,
	} {
		assert.Equal(t, want, c.validates(), "%+v", c)
	}
}

func TestBound(t *testing.T) {
	for patience, want := range map[time.Duration]time.Duration{
		2 * time.Second: 1800 * time.Millisecond, 500 * time.Millisecond: 400 * time.Millisecond, 100 * time.Millisecond: 50 * time.Millisecond,
	} {
		assert.Equal(t, want, bound(patience), "of %s", patience)
	}
}

// A pod's network is the host's only if a list of namespaces says so.
func TestNetwork(t *testing.T) {
	namespaces := func(kinds ...string) []byte {
		var b []byte
		for _, kind := range kinds {
			b = protofields.AppendMessage(b, 5, protofields.AppendString(nil, 1, kind))
		}
		return protofields.AppendMessage(nil, 8, b)
	}
	for _, c := range []struct {
		kinds []string
		want  Network
	}{{nil, NetworkUnknown}, {[]string{"ipc", "uts"}, NetworkHost}, {[]string{"network", "ipc"}, NetworkOwn}, {[]string{"ipc", "network"}, NetworkOwn}} {
		p, err := decodePod(namespaces(c.kinds...))
		assert.NoError(t, err)
		assert.Equal(t, c.want, p.Network, "%v", c.kinds)
	}
	_, err := decodePod(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1))
	assert.Error(t, err)
}
