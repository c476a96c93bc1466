package zds

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/meshcni/meshcni/internal/node/protofields"
)

// maxMessage is the size of the largest message, in bytes: each end reads into a buffer of this size.
const maxMessage = 1024

// version1 is the only version of the protocol, as the proxy's hello names it.
const version1 = 1

// errTooLong: a message would have more than 1,024 bytes, so nothing was sent.
var errTooLong = fmt.Errorf("message is longer than %d bytes", maxMessage)

// errMalformed: a packet is no message of this protocol.
var errMalformed = errors.New("malformed message")

// Kind is the kind of a request. Its values are the numbers of WorkloadRequest's fields.
type Kind uint8

// The requests.
const (
	Add          Kind = 1 // take a pod; its namespace comes with the request
	Del          Kind = 2 // give a pod back; one that the proxy does not have is no error
	SnapshotSent Kind = 3 // all pods of the snapshot were named: give back all others
	Keep         Kind = 5 // keep a pod, if the proxy has it; in the snapshot only
)

// String returns the request's name in the protocol.
func (k Kind) String() string {
	switch k {
	case Add:
		return "Add"
	case Del:
		return "Del"
	case SnapshotSent:
		return "SnapshotSent"
	case Keep:
		return "Keep"
	}
	return fmt.Sprintf("request %d", uint8(k))
}

// Request is a WorkloadRequest, from the agent to the proxy.
type Request struct {
	Kind Kind
	// UID is the pod's; empty for SnapshotSent.
	UID string
	// Info identifies the pod. Only Add has it; nil: the message has none, which a proxy refuses.
	Info *Info
}

// String returns the request for people, such as "Add 6d4bd5a7-8f4b-4c1e-9b0a-0d7e0a5f9a11" or "SnapshotSent".
func (r Request) String() string {
	if r.Kind == SnapshotSent {
		return r.Kind.String()
	}
	return r.Kind.String() + " " + r.UID
}

// Info is a WorkloadInfo: the pod's identity in the mesh.
type Info struct {
	Name, Namespace, ServiceAccount string
}

// The numbers of fields, by message.
const (
	helloVersion = 1

	requestUID  = 1 // of AddWorkload and KeepWorkload
	requestInfo = 2 // of AddWorkload
	delUID      = 2

	infoName, infoNamespace, infoServiceAccount = 1, 2, 3 // 4, the trust domain, is reserved

	responseAck = 1
	ackError    = 1
)

// marshal encodes a request. The error is errTooLong, or says what the request lacks.
func (r Request) marshal() ([]byte, error) {
	var body []byte
	uid := protofields.Number(requestUID)
	switch r.Kind {
	case Add, Keep:
	case Del:
		uid = delUID
	case SnapshotSent:
		if r.UID != "" {
			return nil, fmt.Errorf("%s names pod %q", r.Kind, r.UID)
		}
	default:
		return nil, fmt.Errorf("no such request: %s", r.Kind)
	}
	if r.UID == "" && r.Kind != SnapshotSent {
		return nil, fmt.Errorf("%s names no pod", r.Kind)
	}
	if (r.Info != nil) != (r.Kind == Add) {
		return nil, fmt.Errorf("%s: only Add, and each Add, says who the pod is", r.Kind)
	}
	body = protofields.AppendString(body, uid, r.UID)
	if r.Info != nil {
		var info []byte
		info = protofields.AppendString(info, infoName, r.Info.Name)
		info = protofields.AppendString(info, infoNamespace, r.Info.Namespace)
		info = protofields.AppendString(info, infoServiceAccount, r.Info.ServiceAccount)
		body = protofields.AppendMessage(body, requestInfo, info)
	}
	packet := protofields.AppendMessage(nil, protofields.Number(r.Kind), body)
	if len(packet) > maxMessage {
		return nil, fmt.Errorf("%s: %w: %d", r.Kind, errTooLong, len(packet))
	}
	if !r.valid() {
		return nil, fmt.Errorf("%s of pod %q: a string is not UTF-8", r.Kind, r.UID)
	}
	return packet, nil
}

func (r Request) valid() bool {
	ok := utf8.ValidString(r.UID)
	if i := r.Info; i != nil {
		ok = ok && utf8.ValidString(i.Name) && utf8.ValidString(i.Namespace) && utf8.ValidString(i.ServiceAccount)
	}
	return ok
}

// parseRequest decodes a packet from the agent. An error is errMalformed.
func parseRequest(packet []byte) (Request, error) {
	var r Request
	err := protofields.Each(packet, func(number protofields.Number, f protofields.Field) error {
		kind := Kind(number) //nolint:gosec // compared below
		switch number {
		case protofields.Number(Add), protofields.Number(Del), protofields.Number(SnapshotSent), protofields.Number(Keep):
		default:
			return nil
		}
		body, err := f.Bytes()
		if err != nil {
			return err
		}
		// Of a choice, the last one counts; given twice, the second is merged into the first.
		if r.Kind != kind {
			r = Request{Kind: kind}
		}
		return r.merge(body)
	})
	if err == nil && r.Kind == 0 {
		err = errors.New("it asks for nothing that is known")
	}
	if err != nil {
		return Request{}, fmt.Errorf("request: %w: %w", errMalformed, err)
	}
	return r, nil
}

func (r *Request) merge(body []byte) error {
	uid := protofields.Number(requestUID)
	if r.Kind == Del {
		uid = delUID
	}
	return protofields.Each(body, func(number protofields.Number, f protofields.Field) error {
		switch {
		case r.Kind == SnapshotSent:
			return nil
		case number == uid:
			return f.String(&r.UID)
		case number == requestInfo && r.Kind == Add:
			info, err := f.Bytes()
			if err != nil {
				return err
			}
			if r.Info == nil {
				r.Info = &Info{}
			}
			return r.Info.merge(info)
		}
		return nil
	})
}

func (i *Info) merge(body []byte) error {
	return protofields.Each(body, func(number protofields.Number, f protofields.Field) error {
		switch number {
		case infoName:
			return f.String(&i.Name)
		case infoNamespace:
			return f.String(&i.Namespace)
		case infoServiceAccount:
			return f.String(&i.ServiceAccount)
		}
		return nil
	})
}

// marshalHello returns the proxy's hello.
func marshalHello() []byte {
	return protofields.AppendVarint(nil, helloVersion, version1)
}

// parseHello decodes the proxy's hello, and refuses versions other than [version1].
func parseHello(packet []byte) error {
	var version uint64
	err := protofields.Each(packet, func(number protofields.Number, f protofields.Field) (err error) {
		if number == helloVersion {
			version, err = f.Varint()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("hello: %w: %w", errMalformed, err)
	}
	if version != version1 {
		return fmt.Errorf("hello: version %d of the protocol is not known, only version %d", version, version1)
	}
	return nil
}

// marshalResponse returns the answer to a request. An empty reason accepts it, any other refuses it. A long reason is cut.
func marshalResponse(reason string) []byte {
	const room = maxMessage - 6 // two tags of one byte, two lengths of two
	reason = strings.ToValidUTF8(reason, "?")
	for len(reason) > room {
		_, last := utf8.DecodeLastRuneInString(reason)
		reason = reason[:len(reason)-last]
	}
	return protofields.AppendMessage(nil, responseAck, protofields.AppendString(nil, ackError, reason))
}

// parseResponse decodes a proxy's answer, and returns the reason for which it refuses the request, or "". An error is
// errMalformed.
func parseResponse(packet []byte) (reason string, err error) {
	acked := false
	err = protofields.Each(packet, func(number protofields.Number, f protofields.Field) error {
		if number != responseAck {
			return nil
		}
		ack, err := f.Bytes()
		if err != nil {
			return err
		}
		acked = true
		return protofields.Each(ack, func(number protofields.Number, f protofields.Field) error {
			if number == ackError {
				return f.String(&reason)
			}
			return nil
		})
	})
	if err == nil && !acked {
		err = errors.New("it is no ack")
	}
	if err != nil {
		return "", fmt.Errorf("response: %w: %w", errMalformed, err)
	}
	return reason, nil
}
