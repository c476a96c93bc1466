package agentsock

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
)

// protocolVersion is in each frame.
const protocolVersion = 1

// Bounds of a frame's length, in bytes.
const (
	// maxRequest is far above what a request takes: names of at most 253 bytes, a path and some addresses.
	maxRequest = 64 << 10
	// maxAnswer is more than the largest object that etcd accepts (1.5 MiB), and than a record of package attachment.
	maxAnswer = 8 << 20
)

// ErrBusy: the agent has too many requests. Check with errors.Is(err, agentsock.ErrBusy).
var ErrBusy = errors.New("the agent has too many requests at once")

// errMalformed is a request that is none.
var errMalformed = errors.New("malformed request")

// kind is a request's byte 5.
type kind byte

const (
	kindPod kind = iota + 1
	kindAttach
	kindDetach
	kindPods
	kindRelease
	kindReady
	kindReleaseTo

	answers    kind = 128 // the answer to a request of kind k has kind answers + k
	kindFailed kind = 255
)

// The names of the requests, in the order of their kinds on the wire. They are stable.
var requests = []string{"pod", "attach", "detach", "pods", "release", "ready", "release-to"}

func (k kind) known() bool { return k >= kindPod && k <= kindReleaseTo }

// String returns the request's name.
func (k kind) String() string {
	if !k.known() {
		return fmt.Sprintf("kind %d", byte(k))
	}
	return requests[k-1]
}

const (
	headerBytes = 6
	lengthBytes = 4
)

// frame returns a frame without body, whose length seal fills in.
func frame(k kind) []byte { return []byte{0, 0, 0, 0, protocolVersion, byte(k)} }

func seal(f []byte, most int) ([]byte, error) {
	n := len(f) - lengthBytes
	if n > most {
		return nil, fmt.Errorf("it would have %d bytes, of at most %d", n, most)
	}
	binary.BigEndian.PutUint32(f, uint32(n)) //nolint:gosec // at most maxAnswer
	return f, nil
}

// header reads a frame's first bytes. body is the length of the rest.
func header(b [headerBytes]byte, most int) (version byte, k kind, body int, err error) {
	n := binary.BigEndian.Uint32(b[:])
	if n < headerBytes-lengthBytes || n > uint32(most) { //nolint:gosec // a constant
		return 0, 0, 0, fmt.Errorf("its length is %d, of 2 to %d", n, most)
	}
	return b[4], kind(b[5]), int(n) - (headerBytes - lengthBytes), nil
}

// inJSON makes a whole frame of a value; nil has no body.
func inJSON(k kind, v any, most int) ([]byte, error) {
	f := frame(k)
	if v != nil {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		f = append(f, text...)
	}
	return seal(f, most)
}

func podFrame(p Pod) ([]byte, error) {
	if p.Pod == nil {
		return nil, errors.New("it has no pod")
	}
	size, rest := p.Pod.Size(), 0
	if p.Namespace != nil {
		rest = p.Namespace.Size()
	}
	at := headerBytes + lengthBytes
	f := make([]byte, at+size+rest)
	copy(f, frame(answers+kindPod))
	binary.BigEndian.PutUint32(f[headerBytes:], uint32(size)) //nolint:gosec // seal checks the sum
	if _, err := p.Pod.MarshalToSizedBuffer(f[at : at+size]); err != nil {
		return nil, err
	}
	if p.Namespace != nil {
		if _, err := p.Namespace.MarshalToSizedBuffer(f[at+size:]); err != nil {
			return nil, err
		}
	}
	return seal(f, maxAnswer)
}

func parsePod(body []byte) (p Pod, err error) {
	if len(body) < lengthBytes {
		return p, errors.New("it has no pod")
	}
	size, rest := binary.BigEndian.Uint32(body), body[lengthBytes:]
	if uint64(size) > uint64(len(rest)) {
		return p, fmt.Errorf("its pod has %d bytes, of %d", size, len(rest))
	}
	p.Pod = &corev1.Pod{}
	if err := p.Pod.Unmarshal(rest[:size]); err != nil {
		return Pod{}, fmt.Errorf("decode the pod: %w", err)
	}
	if rest = rest[size:]; len(rest) > 0 {
		p.Namespace = &corev1.Namespace{}
		if err := p.Namespace.Unmarshal(rest); err != nil {
			return Pod{}, fmt.Errorf("decode the namespace: %w", err)
		}
	}
	return p, nil
}

// problem is the body of an error.
type problem struct {
	Code    string      `json:"code"`
	Message string      `json:"message"`
	Step    string      `json:"step,omitempty"`
	Reason  status.Code `json:"reason,omitempty"`
}

// The outcomes of a request, or the codes of the errors that are answered. They are stable.
const (
	outcomeOK          = "ok"
	outcomeUnknown     = "unknown"     // the agent does not know the pod; see [ErrUnknown]
	outcomeUnsupported = "unsupported" // the agent does not do that; see [ErrUnsupported]
	outcomeStep        = "step"        // a step failed; see [StepError]
	outcomeBusy        = "busy"        // the agent has as much to do as it takes on; see [ErrBusy]
	outcomeVersion     = "version"     // the peer speaks another version of the protocol
	outcomeMalformed   = "malformed"   // the request cannot be read
	outcomeFailed      = "failed"      // any other failure
	outcomeRefused     = "refused"     // the peer may not connect
)

// maxMessage bounds an error's text, in bytes: the plugin's own errors are not longer.
const maxMessage = 16 << 10

// problemOf returns what is sent of an error.
func problemOf(err error) problem {
	p := problem{Code: outcomeFailed, Message: truncate.Error(err, maxMessage)}
	var step *StepError
	switch {
	case errors.As(err, &step):
		p.Code, p.Step, p.Reason = outcomeStep, truncate.Text(step.Step, maxMessage), status.Code(truncate.Text(string(step.Reason), maxMessage))
		p.Message = truncate.Text(fmt.Sprint(step.Err), maxMessage)
	case errors.Is(err, ErrUnknown):
		p.Code = outcomeUnknown
	case errors.Is(err, ErrUnsupported):
		p.Code = outcomeUnsupported
	case errors.As(err, new(versionError)):
		p.Code = outcomeVersion
	case errors.Is(err, ErrBusy):
		p.Code = outcomeBusy
	case errors.Is(err, errMalformed):
		p.Code = outcomeMalformed
	}
	return p
}

// err returns the error of which problemOf made p. An unknown code, of a later agent, counts as failed.
func (p problem) err() error {
	if p.Code == outcomeStep {
		return &StepError{Step: p.Step, Reason: p.Reason, Err: errors.New(p.Message)}
	}
	is := map[string]error{outcomeUnknown: ErrUnknown, outcomeUnsupported: ErrUnsupported, outcomeVersion: ErrUnsupported, outcomeBusy: ErrBusy}[p.Code]
	return &answered{text: p.Message, is: is}
}

// answered is an error of the agent, in its words.
type answered struct {
	text string
	is   error
}

func (e *answered) Error() string { return e.text }
func (e *answered) Unwrap() error { return e.is }

// decode reads the JSON of a body.
func decode[T any](body []byte) (v T, err error) {
	if err = json.Unmarshal(body, &v); err != nil {
		err = fmt.Errorf("decode its JSON: %w", err)
	}
	return v, err
}

// check returns an error that names what an Attachment lacks.
func (a Attachment) check() error {
	var errs []error
	for _, f := range []struct{ what, value string }{
		{"containerID", a.ContainerID}, {"ifName", a.IfName}, {"network", a.Network}, {"pod", a.Pod.Name}, {"pod's namespace", a.Pod.Namespace},
		{"pod's UID", a.Pod.UID},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("%s is missing", f.what))
		}
	}
	return errors.Join(errs...)
}
