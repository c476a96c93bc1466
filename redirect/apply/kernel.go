//go:build linux

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/redirect"
)

// ipv6Conf has default, for interfaces that come later. Of /proc/sys/net a thread sees its own namespace's. A variable for tests.
var ipv6Conf = "/proc/sys/net/ipv6/conf"

// Kernel finds out which address families the namespace has. IPv4 is always usable: what has no
// address yet may be given one. What cannot be read is an error, never an absence; so are
// more interfaces than are read (16,384), of which none had IPv6.
func Kernel(ns doer) (redirect.Kernel, error) {
	k := redirect.Kernel{IPv4: redirect.PresenceUsable}
	err := ns.Do(func() (err error) {
		k.IPv6, err = presenceOfIPv6()
		return err
	})
	if err != nil {
		return redirect.Kernel{}, fmt.Errorf("look for address families: %w", err)
	}
	return k, nil
}

// presenceOfIPv6 looks at the calling thread's namespace.
func presenceOfIPv6() (redirect.Presence, error) {
	has, err := hasIPv6()
	if err != nil {
		return "", err
	}
	if !has {
		return redirect.PresenceAbsent, nil
	}
	// Interfaces that come later have it as default says. One file settles most namespaces.
	off, err := os.ReadFile(filepath.Join(ipv6Conf, "default", "disable_ipv6"))
	if errors.Is(err, fs.ErrNotExist) {
		return redirect.PresenceUsable, nil // a kernel without sysctls: nothing to switch it off with
	}
	if err != nil {
		return "", fmt.Errorf("look where IPv6 is switched off: %w", err)
	}
	if strings.TrimSpace(string(off)) == "0" {
		return redirect.PresenceUsable, nil
	}
	c := rtnetlink.New(ownNamespace{}, interfaces)
	defer c.Close()
	on, err := c.AnyIPv6()
	if err != nil {
		return "", fmt.Errorf("look where IPv6 is switched off: %w", err)
	}
	if on {
		return redirect.PresenceUsable, nil
	}
	return redirect.PresenceOff, nil
}

// interfaces bounds what is read of a namespace's interfaces. The kernel sends up to 2 KiB of each, and a pod can make any number.
var interfaces = rtnetlink.Limit{Messages: 1 << 14, Bytes: 32 << 20, Time: rtnetlink.Default.Time}

// ownNamespace opens sockets in the calling thread's namespace.
type ownNamespace struct{}

func (ownNamespace) Socket(domain, typ, proto int) (int, error) {
	return unix.Socket(domain, typ, proto)
}
