package protofields

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/encoding/protowire"
)

// What is written and read is what protobuf's own library writes and reads.
func FuzzEach(f *testing.F) {
	for _, b := range [][]byte{
		nil, AppendString(nil, 1, "a"), AppendMessage(nil, 15, nil), AppendVarint(nil, 16, 1<<63), AppendVarint(nil, 1<<29-1, 300), {0x09, 1, 2, 3, 4, 5, 6, 7, 8},
		{0x0d, 1, 2, 3, 4}, {0x0d, 1, 2, 3}, {0x0a, 2, 'a'}, {0x0b, 0x0c}, {0x0b, 0x08, 1, 0x13, 0x14, 0x0c, 0x10, 2}, {0x0b, 0x14}, {0x0c}, {0x0b}, {0x0f, 1}, {0x00, 1}, {0x80, 0x80, 0x80, 0x80, 0x10, 1}, bytes.Repeat([]byte{0xff}, 11),
		append([]byte{8}, bytes.Repeat([]byte{0xff}, 10)...), {8, 0x80}, {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rest := b
		err := Each(b, func(number Number, f Field) error {
			theirs, typ, n := protowire.ConsumeTag(rest)
			assert.Equal(t, theirs, protowire.Number(number))
			size := protowire.ConsumeFieldValue(theirs, typ, rest[n:])
			if !assert.Positive(t, size) {
				return nil
			}
			raw := rest[n : n+size]
			rest = rest[n+size:]
			text, noText := f.Bytes()
			value, noValue := f.Varint()
			assert.Equal(t, typ == protowire.BytesType, noText == nil)
			assert.Equal(t, typ == protowire.VarintType, noValue == nil)
			if noText == nil {
				want, _ := protowire.ConsumeBytes(raw)
				assert.Equal(t, string(want), string(text))
				assert.True(t, bytes.HasPrefix(protowire.AppendTag(nil, theirs, typ), AppendMessage(nil, number, nil)[:protowire.SizeTag(theirs)]))
			}
			if noValue == nil {
				want, _ := protowire.ConsumeVarint(raw)
				assert.Equal(t, want, value)
				if value != 0 {
					assert.Equal(t, protowire.AppendVarint(protowire.AppendTag(nil, theirs, typ), value), AppendVarint(nil, number, value))
				}
			}
			return nil
		})
		if err == nil {
			assert.Empty(t, rest)
			return
		}
		number, typ, n := protowire.ConsumeTag(rest)
		assert.True(t, n < 0 || protowire.ConsumeFieldValue(number, typ, rest[n:]) < 0, "%x: %v", rest, err)
	})
}
