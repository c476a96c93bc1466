package zds

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// appendString appends a string field; protobuf leaves out those that are empty.
func appendString(b []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

func appendMessage(b []byte, number protowire.Number, body []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), body)
}

// field is the encoded value of a field.
type field struct {
	typ protowire.Type
	raw []byte
}

func (f field) bytes() ([]byte, error) {
	if f.typ != protowire.BytesType {
		return nil, fmt.Errorf("wire type %d where %d is expected", f.typ, protowire.BytesType)
	}
	value, n := protowire.ConsumeBytes(f.raw)
	return value, protowire.ParseError(n)
}

func (f field) string(to *string) error {
	value, err := f.bytes()
	if err == nil && !utf8.Valid(value) {
		err = errors.New("a string is not UTF-8")
	}
	if err == nil {
		*to = string(value)
	}
	return err
}

func (f field) varint() (uint64, error) {
	if f.typ != protowire.VarintType {
		return 0, fmt.Errorf("wire type %d where %d is expected", f.typ, protowire.VarintType)
	}
	value, n := protowire.ConsumeVarint(f.raw)
	return value, protowire.ParseError(n)
}

// eachField calls visit with each field of a message. Those that visit does not know are skipped, as protobuf wants it.
func eachField(b []byte, visit func(protowire.Number, field) error) error {
	for len(b) > 0 {
		number, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, typ, b[tag:])
		if size < 0 {
			return fmt.Errorf("field %d: %w", number, protowire.ParseError(size))
		}
		if err := visit(number, field{typ, b[tag : tag+size]}); err != nil {
			return fmt.Errorf("field %d: %w", number, err)
		}
		b = b[tag+size:]
	}
	return nil
}
