// Package protofields reads and writes the few protobuf messages that a socket of this node needs, field by field: generated code would
// bound nothing. It imports nothing of protobuf's own library, which reads the program's file at each start of a process.
package protofields

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Number is that of a field. Those that there are begin with one.
type Number int32

// The kinds of a value. A group's has fields up to its end.
const (
	varint = 0
	fixed8 = 1
	length = 2
	group  = 3
	end    = 4
	fixed4 = 5
)

// maxDepth bounds groups in groups.
const maxDepth = 100

func appendTag(b []byte, number Number, kind uint64) []byte {
	return binary.AppendUvarint(b, uint64(number)<<3|kind) //nolint:gosec // positive
}

// AppendString appends a string field; protobuf leaves out those that are empty.
func AppendString(b []byte, number Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(binary.AppendUvarint(appendTag(b, number, length), uint64(len(s))), s...)
}

// AppendMessage appends a message, also an empty one.
func AppendMessage(b []byte, number Number, body []byte) []byte {
	return append(binary.AppendUvarint(appendTag(b, number, length), uint64(len(body))), body...)
}

// AppendVarint appends a number or an enumeration's value; protobuf leaves out zero.
func AppendVarint(b []byte, number Number, value uint64) []byte {
	if value == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, number, varint), value)
}

// Field is the value of a field.
type Field struct {
	kind   uint64
	number uint64 // of a varint
	bytes  []byte // of what has a length
}

func (f Field) is(kind uint64) error {
	if f.kind != kind {
		return fmt.Errorf("wire type %d where %d is expected", f.kind, kind)
	}
	return nil
}

// Bytes returns a string's or a message's bytes, which are those of what was read.
func (f Field) Bytes() ([]byte, error) { return f.bytes, f.is(length) }

// String sets a string.
func (f Field) String(to *string) error {
	value, err := f.Bytes()
	if err == nil && !utf8.Valid(value) {
		err = errors.New("a string is not UTF-8")
	}
	if err == nil {
		*to = string(value)
	}
	return err
}

// Varint returns a number's value.
func (f Field) Varint() (uint64, error) { return f.number, f.is(varint) }

// Each calls visit with each field of a message. Those that visit does not know are skipped, as protobuf wants it.
func Each(b []byte, visit func(Number, Field) error) error {
	for len(b) > 0 {
		number, f, rest, err := next(b, 0)
		if err == nil && f.kind == end {
			err = errors.New("the end of a group that has not begun")
		}
		if err == nil {
			err = visit(number, f)
		}
		if err != nil {
			return fmt.Errorf("field %d: %w", number, err)
		}
		b = rest
	}
	return nil
}

// next reads a field, inside that many groups.
func next(b []byte, depth int) (number Number, f Field, rest []byte, err error) {
	tag, rest, err := uvarint(b)
	if err != nil {
		return 0, f, nil, err
	}
	if tag>>3 == 0 || tag>>3 > math.MaxInt32 {
		return 0, f, nil, errors.New("a field's number is out of range")
	}
	number, f.kind = Number(tag>>3), tag&7 //nolint:gosec // looked at
	size := uint64(0)
	switch f.kind {
	case varint:
		f.number, rest, err = uvarint(rest)
	case length:
		size, rest, err = uvarint(rest)
	case fixed8:
		size = 8
	case fixed4:
		size = 4
	case group:
		rest, err = afterGroup(rest, number, depth+1)
	case end:
	default:
		err = fmt.Errorf("wire type %d", f.kind)
	}
	if err == nil && size > uint64(len(rest)) {
		err = errShort
	}
	if err != nil {
		return number, f, nil, err
	}
	f.bytes = rest[:size:size]
	return number, f, rest[size:], nil
}

// afterGroup skips a group's fields and its end.
func afterGroup(b []byte, number Number, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errors.New("groups in groups")
	}
	for {
		inner, f, rest, err := next(b, depth)
		switch {
		case err != nil:
			return nil, err
		case f.kind == end && inner != number:
			return nil, errors.New("the end of another group")
		case f.kind == end:
			return rest, nil
		}
		b = rest
	}
}

var errShort = errors.New("the message ends too early")

func uvarint(b []byte) (value uint64, rest []byte, err error) {
	value, n := binary.Uvarint(b)
	switch {
	case n == 0:
		return 0, nil, errShort
	case n < 0:
		return 0, nil, errors.New("a number has more than 64 bits")
	}
	return value, b[n:], nil
}
