// Package podlist reads an API server's list of pods without holding it: a node's pods may be a thousand times larger than what is
// kept of them.
package podlist

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// magic begins an object in protobuf (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
var magic = []byte("k8s\x00")

// maxItem bounds one pod of a list: etcd takes objects of 1.5 MiB, in JSON or protobuf.
const maxItem = 16 << 20

// Decode reads a list of pods one by one, in protobuf or JSON, and has each cut down before it reads the next. A body that ends early is an error.
func Decode(body io.Reader, keep func(*corev1.Pod) *corev1.Pod) (*corev1.PodList, error) {
	in := bufio.NewReaderSize(body, 64<<10)
	begin, err := in.Peek(len(magic))
	if err != nil {
		return nil, unexpected(err)
	}
	list := &corev1.PodList{}
	add := func(pod *corev1.Pod) { list.Items = append(list.Items, *keep(pod)) }
	if bytes.Equal(begin, magic) {
		_, _ = in.Discard(len(magic))
		err = decodeProtobuf(in, &list.ListMeta, add)
	} else {
		err = decodeJSON(in, &list.ListMeta, add)
	}
	return list, err
}

// decodeProtobuf reads a runtime.Unknown that holds a PodList.
func decodeProtobuf(in *bufio.Reader, meta *metav1.ListMeta, add func(*corev1.Pod)) error {
	const typeMeta, raw = 1, 2
	listed := false
	err := eachField(in, func(number, size uint64) error {
		switch number {
		case typeMeta:
			var is runtime.TypeMeta
			err := object(in, size, nil, &is)
			if err == nil && is.Kind != "PodList" {
				err = fmt.Errorf("it is a %.20q", is.Kind)
			}
			return err
		case raw:
			listed = true
			return decodeRaw(in, size, meta, add)
		}
		return skip(in, size)
	})
	if err == nil && !listed {
		err = errors.New("it holds no list")
	}
	return err
}

// decodeRaw reads the PodList itself.
func decodeRaw(in *bufio.Reader, size uint64, meta *metav1.ListMeta, add func(*corev1.Pod)) error {
	const metadata, items = 1, 2
	rest := &io.LimitedReader{R: in, N: int64(min(size, 1<<62))} //nolint:gosec // bounded
	within := bufio.NewReaderSize(rest, 64<<10)
	var buffer bytes.Buffer
	err := eachField(within, func(number, size uint64) error {
		switch number {
		case metadata:
			return object(within, size, &buffer, meta)
		case items:
			pod := &corev1.Pod{}
			err := object(within, size, &buffer, pod)
			if err == nil {
				add(pod)
			}
			return err
		}
		return skip(within, size)
	})
	if err == nil && rest.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// eachField calls each with the number and size of each field of a message; all that Kubernetes' lists have are delimited by a length.
func eachField(in *bufio.Reader, each func(number, size uint64) error) error {
	const delimited = 2
	for {
		tag, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && tag&7 != delimited {
			err = fmt.Errorf("field %d has wire type %d", tag>>3, tag&7)
		}
		var size uint64
		if err == nil {
			size, err = binary.ReadUvarint(in)
		}
		if err == nil {
			err = each(tag>>3, size)
		}
		if err != nil {
			return unexpected(err)
		}
	}
}

// object reads an object of some bytes. What it makes shares no memory with the buffer.
func object(in io.Reader, size uint64, buffer *bytes.Buffer, into interface{ Unmarshal([]byte) error }) error {
	if size > maxItem {
		return fmt.Errorf("an object of %d bytes", size)
	}
	if buffer == nil {
		buffer = &bytes.Buffer{}
	}
	buffer.Reset()
	if _, err := io.CopyN(buffer, in, int64(size)); err != nil {
		return err
	}
	return into.Unmarshal(buffer.Bytes())
}

func skip(in *bufio.Reader, size uint64) error {
	_, err := io.CopyN(io.Discard, in, int64(min(size, 1<<62))) //nolint:gosec // bounded
	return err
}

// decodeJSON reads a list in JSON, in which a proxy or a very small API server may answer.
func decodeJSON(in io.Reader, meta *metav1.ListMeta, add func(*corev1.Pod)) error {
	from := json.NewDecoder(in)
	if err := delim(from, '{'); err != nil {
		return err
	}
	for from.More() {
		key, err := from.Token()
		if err != nil {
			return unexpected(err)
		}
		switch key {
		case "metadata":
			err = from.Decode(meta)
		case "items":
			err = decodeItems(from, add)
		default:
			err = from.Decode(new(json.RawMessage))
		}
		if err != nil {
			return unexpected(err)
		}
	}
	return delim(from, '}')
}

func decodeItems(from *json.Decoder, add func(*corev1.Pod)) error {
	begin, err := from.Token()
	switch {
	case err != nil:
		return err
	case begin == nil:
		return nil // of Go's nil slice
	case begin != json.Delim('['):
		return errors.New("its items are no list")
	}
	for from.More() {
		pod := &corev1.Pod{}
		if err := from.Decode(pod); err != nil {
			return err
		}
		add(pod)
	}
	return delim(from, ']')
}

func delim(from *json.Decoder, want json.Delim) error {
	got, err := from.Token()
	if err == nil && got != want {
		err = fmt.Errorf("there is %.20q where %q should be", fmt.Sprint(got), want.String())
	}
	return unexpected(err)
}

// unexpected makes the end of the body within the list an error.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
