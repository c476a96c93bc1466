//go:build linux

package apply

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// SetUndoTime bounds undoing for a test that is not parallel.
func SetUndoTime(t testing.TB, d time.Duration) {
	old := undoTime
	undoTime = d
	t.Cleanup(func() { undoTime = old })
}

// HideIPv6 makes a test that is not parallel see a kernel without IPv6.
func HideIPv6(t testing.TB) { setInet6(t, "/proc/thread-self/net/if_inet6-hidden") }

// ObscureIPv6 makes it impossible to say whether the kernel has IPv6.
func ObscureIPv6(t testing.TB) { setInet6(t, "/proc/version/if_inet6") }

// ObscureSysctls makes it impossible to say where IPv6 is switched off.
func ObscureSysctls(t testing.TB) {
	old := ipv6Conf
	ipv6Conf = "/proc/version/conf"
	t.Cleanup(func() { ipv6Conf = old })
}

// ObscureLegacy makes it impossible to say whether the legacy variant has tables.
func ObscureLegacy(t testing.TB) {
	old := xtablesNames
	xtablesNames = map[ruleset.Family]string{ruleset.IPv4: "/proc/version/ip_tables_names"}
	t.Cleanup(func() { xtablesNames = old })
}

// SetListLimit bounds what is read of a namespace for a test that is not parallel.
func SetListLimit(t testing.TB, bytes int) {
	old := listLimit
	listLimit = bytes
	t.Cleanup(func() { listLimit = old })
}

func setInet6(t testing.TB, path string) {
	old := inet6
	inet6 = path
	t.Cleanup(func() { inet6 = old })
}

// Generation is how often the namespace's nftables have been changed.
func Generation(ns Namespace) (id uint32, err error) {
	err = ns.Do(func() error {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
		req.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0})
		msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		if err != nil {
			return err
		}
		for _, msg := range msgs {
			attrs, err := nl.ParseRouteAttr(msg[4:])
			if err != nil {
				return err
			}
			for _, a := range attrs {
				if a.Attr.Type == unix.NFTA_GEN_ID {
					id = binary.BigEndian.Uint32(a.Value)
				}
			}
		}
		return nil
	})
	return id, err
}

// NewIPTables and NewNFTables make a backend without looking at the namespace.
func NewIPTables(ns Namespace, variant ruleset.Backend, o Options) (Backend, error) {
	return backend(newIPTables(ns, variant, o))
}

// NFTables is the backend of native nftables, which does not look for iptables-legacy.
type NFTables = nftablesBackend

func NewNFTables(ns Namespace) *NFTables { return newNFTables(ns) }

// Follow follows the links of a path in a root.
func Follow(root, path string) (string, error) { return Options{Root: root}.follow(path) }

// ReadOfRouting returns how many messages and bytes a look at the addresses, routes and policy rules of a ruleset reads, and how they
// differ.
func ReadOfRouting(ns Namespace, rs ruleset.Ruleset) (messages, bytes int, diffs []ruleset.Difference, err error) {
	p := plumbing{ns: ns}
	defer p.close()
	diffs, err = p.diff(rs.Owner(), rs, ruleset.Families[:])
	messages, bytes = p.conn().Read()
	return messages, bytes, diffs, err
}

// FewInterfaces has no more interfaces of a namespace read.
func FewInterfaces(t testing.TB, n int) {
	old := interfaces
	interfaces.Messages = n
	t.Cleanup(func() { interfaces = old })
}

// ReadOfInterfaces returns how many messages it takes to know whether IPv6 is on.
func ReadOfInterfaces(ns rtnetlink.Socketer) (messages int, err error) {
	c := rtnetlink.New(ns, interfaces)
	defer c.Close()
	_, err = c.AnyIPv6()
	messages, _ = c.Read()
	return messages, err
}
