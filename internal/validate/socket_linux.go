package validate

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
)

// name is a socket's own address.
func name(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask for the socket's address: %w", err)
	}
	return ownsock.AddrPort(sa), nil
}

// question is a DNS query that any resolver can answer and that leads nowhere: the address of a
// name below .invalid (RFC 6761), with the number in it to know it by (RFC 1035, section 4).
func question(n uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, n)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired; one question
	for _, label := range []string{fmt.Sprintf("meshcni-%d", n), "invalid"} {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, 1, 0, 1) // type A, class IN
}
