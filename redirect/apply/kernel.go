//go:build linux

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni/redirect"
)

// ipv6Conf has a directory for each interface, and default for those that come
// later. Of /proc/sys/net a thread sees its own namespace's. A variable for tests.
var ipv6Conf = "/proc/sys/net/ipv6/conf"

// Kernel finds out which address families the namespace has. IPv4 is always usable: what has no
// address yet may be given one. What cannot be read is an error, never an absence.
func Kernel(ns interface{ Do(fn func() error) error }) (redirect.Kernel, error) {
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
	entries, err := os.ReadDir(ipv6Conf)
	if errors.Is(err, fs.ErrNotExist) {
		return redirect.PresenceUsable, nil // a kernel without sysctls: nothing to switch it off with
	}
	if err != nil {
		return "", fmt.Errorf("look where IPv6 is switched off: %w", err)
	}
	for _, e := range entries {
		if e.Name() == "all" || e.Name() == "lo" {
			continue // the one says nothing of what interfaces have now, the other leads nowhere
		}
		off, err := os.ReadFile(filepath.Join(ipv6Conf, e.Name(), "disable_ipv6"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the interface has gone meanwhile
		}
		if err != nil {
			return "", fmt.Errorf("look where IPv6 is switched off: %w", err)
		}
		if strings.TrimSpace(string(off)) == "0" {
			return redirect.PresenceUsable, nil
		}
	}
	return redirect.PresenceOff, nil
}
