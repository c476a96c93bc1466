// Package protofields reads and writes the few protobuf messages that a socket of this node needs, field by field: generated code would
// bound nothing.
package protofields

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// AppendString appends a string field; protobuf leaves out those that are empty.
func AppendString(b []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

// AppendMessage appends a message, also an empty one.
func AppendMessage(b []byte, number protowire.Number, body []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), body)
}

// AppendVarint appends a number or an enumeration's value; protobuf leaves out zero.
func AppendVarint(b []byte, number protowire.Number, value uint64) []byte {
	if value == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), value)
}

// Field is the encoded value of a field.
type Field struct {
	typ protowire.Type
	raw []byte
}

// Bytes returns a string's or a message's bytes, which are those of what was read.
func (f Field) Bytes() ([]byte, error) {
	if f.typ != protowire.BytesType {
		return nil, fmt.Errorf("wire type %d where %d is expected", f.typ, protowire.BytesType)
	}
	value, n := protowire.ConsumeBytes(f.raw)
	return value, protowire.ParseError(n)
}

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
func (f Field) Varint() (uint64, error) {
	if f.typ != protowire.VarintType {
		return 0, fmt.Errorf("wire type %d where %d is expected", f.typ, protowire.VarintType)
	}
	value, n := protowire.ConsumeVarint(f.raw)
	return value, protowire.ParseError(n)
}

// Each calls visit with each field of a message. Those that visit does not know are skipped, as protobuf wants it.
func Each(b []byte, visit func(protowire.Number, Field) error) error {
	for len(b) > 0 {
		number, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, typ, b[tag:])
		if size < 0 {
			return fmt.Errorf("field %d: %w", number, protowire.ParseError(size))
		}
		if err := visit(number, Field{typ, b[tag : tag+size]}); err != nil {
			return fmt.Errorf("field %d: %w", number, err)
		}
		b = b[tag+size:]
	}
	return nil
}
