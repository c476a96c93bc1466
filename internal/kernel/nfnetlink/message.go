//go:build linux

package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// TypeOf is the type of a message of nf_tables.
func TypeOf(msg uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | msg }

// Writer builds messages.
type Writer struct {
	B     []byte
	Seq   uint32 // of the next message
	start int    // of the message under way
	nests []int
}

// Begin begins a message.
func (w *Writer) Begin(typ, flags uint16, family byte, resource uint16) {
	w.start = len(w.B)
	w.B = binary.NativeEndian.AppendUint32(w.B, 0)
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
	w.B = binary.NativeEndian.AppendUint16(w.B, flags)
	w.B = binary.NativeEndian.AppendUint32(w.B, w.Seq)
	w.B = binary.NativeEndian.AppendUint32(w.B, 0) // to the kernel
	w.B = append(w.B, family, unix.NFNETLINK_V0)
	w.B = binary.BigEndian.AppendUint16(w.B, resource)
	w.Seq++
}

// End ends it.
func (w *Writer) End() {
	binary.NativeEndian.PutUint32(w.B[w.start:], uint32(len(w.B)-w.start)) //nolint:gosec // far below 4 GiB
}

// Flag adds a flag to the message under way, or to the one just ended.
func (w *Writer) Flag(f uint16) {
	at := w.B[w.start+6:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|f)
}

// Attr adds an attribute.
func (w *Writer) Attr(typ uint16, data ...byte) {
	w.head(typ, len(data))
	w.B = append(w.B, data...)
	w.pad()
}

func (w *Writer) head(typ uint16, size int) {
	w.B = binary.NativeEndian.AppendUint16(w.B, uint16(4+size)) //nolint:gosec // callers' data is short
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
}

func (w *Writer) pad() { w.B = append(w.B, 0, 0, 0)[:nlAlign(len(w.B))] }

// Text adds a string.
func (w *Writer) Text(typ uint16, s string) {
	w.head(typ, len(s)+1)
	w.B = append(append(w.B, s...), 0)
	w.pad()
}

// U32 adds a number.
func (w *Writer) U32(typ uint16, v uint32) {
	w.head(typ, 4)
	w.B = binary.BigEndian.AppendUint32(w.B, v)
}

// U64 adds a number.
func (w *Writer) U64(typ uint16, v uint64) {
	w.head(typ, 8)
	w.B = binary.BigEndian.AppendUint64(w.B, v)
}

// Nest begins an attribute that holds others, which Close ends.
func (w *Writer) Nest(typ uint16) {
	w.nests = append(w.nests, len(w.B))
	w.Attr(typ | unix.NLA_F_NESTED)
}

// Close ends the innermost attribute that Nest began.
func (w *Writer) Close() {
	n := len(w.nests) - 1
	start := w.nests[n]
	w.nests = w.nests[:n]
	binary.NativeEndian.PutUint16(w.B[start:], uint16(len(w.B)-start)) //nolint:gosec // lists are split below 64 KiB
}

// BeginBatch begins a transaction. The kernel refuses it if there were others since the generation; 0 is any.
func (w *Writer) BeginBatch(generation uint32) {
	w.Begin(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		w.U32(batchGenID, generation)
	}
	w.End()
}

// Source: enum nfnl_batch_attributes in linux/netfilter/nfnetlink.h.
const batchGenID = 1

// EndBatch asks for the last message to be acknowledged, which is done when all is, and returns its number.
func (w *Writer) EndBatch() (last uint32) {
	w.Flag(unix.NLM_F_ACK)
	last = w.Seq - 1
	w.Begin(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	w.End()
	return last
}

// Expr adds an expression to a rule's list.
func (w *Writer) Expr(name string, body func()) {
	w.Nest(unix.NFTA_LIST_ELEM)
	w.Text(unix.NFTA_EXPR_NAME, name)
	w.Nest(unix.NFTA_EXPR_DATA)
	body()
	w.Close()
	w.Close()
}

// BE32 and BE16 are numbers in network byte order, NE32 is one in the machine's.
func BE32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func BE16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func NE32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Attr is one attribute.
type Attr struct {
	Typ  uint16 // without flags
	Data []byte
	// Nested is set where a [Writer] nested it; the kernel sets it on some of those only.
	Nested bool
}

// Attrs iterates over attributes and stops at a malformed one.
func Attrs(b []byte) func(yield func(Attr) bool) {
	return func(yield func(Attr) bool) {
		for len(b) >= 4 {
			size := int(binary.NativeEndian.Uint16(b))
			if size < 4 || size > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(Attr{typ, b[4:size], binary.NativeEndian.Uint16(b[2:])&unix.NLA_F_NESTED != 0}) {
				return
			}
			b = b[min(len(b), nlAlign(size)):]
		}
	}
}

// Attr returns the nested attribute of the type, which is empty if there is none.
func (a Attr) Attr(typ uint16) Attr {
	for n := range Attrs(a.Data) {
		if n.Typ == typ {
			return n
		}
	}
	return Attr{}
}

// Text returns the string up to its first zero.
func (a Attr) Text() string {
	for i, c := range a.Data {
		if c == 0 {
			return string(a.Data[:i])
		}
	}
	return string(a.Data)
}

// U32 returns a number in network byte order, or 0.
func (a Attr) U32() uint32 {
	if len(a.Data) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a.Data)
}

// U64 returns a number in network byte order, or 0.
func (a Attr) U64() uint64 {
	if len(a.Data) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(a.Data)
}
