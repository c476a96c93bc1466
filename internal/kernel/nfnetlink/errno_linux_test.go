package nfnetlink_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
)

// TestErrno: only 0 acknowledges. The end of a list fails by a negative code alone, and of an old kernel it has none.
func TestErrno(t *testing.T) {
	for _, tt := range []struct {
		typ  uint16
		code []int32
		want error
	}{
		{unix.NLMSG_ERROR, []int32{0}, nil},
		{unix.NLMSG_ERROR, []int32{-int32(unix.EPERM)}, unix.EPERM},
		{unix.NLMSG_ERROR, []int32{int32(unix.EPERM)}, unix.EPERM},
		{unix.NLMSG_ERROR, nil, unix.EBADMSG},
		{unix.NLMSG_DONE, []int32{0}, nil},
		{unix.NLMSG_DONE, []int32{-int32(unix.EINTR)}, unix.EINTR},
		{unix.NLMSG_DONE, []int32{20}, nil},
		{unix.NLMSG_DONE, nil, nil},
	} {
		m := nfnetlink.Message{Typ: tt.typ}
		for _, code := range tt.code {
			m.Body = binary.NativeEndian.AppendUint32(m.Body, uint32(code)) //nolint:gosec // two's complement
		}
		assert.Equal(t, tt.want, m.Errno(), "%d %v", tt.typ, tt.code)
	}
}
