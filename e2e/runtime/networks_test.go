package runtime

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// Both are replaced, by a name of its own for each network and by the version of
// the kind of runtime.
const (
	networkName    = "NETWORK"
	networkVersion = "VERSION"
)

// named is a network with its name and version.
func (n *node) named(network string) string {
	return strings.NewReplacer(networkName, n.network(), networkVersion, n.kind.version).Replace(network)
}

const (
	ranges4    = `[[{"subnet": "10.88.7.0/24"}]]`
	ranges46   = `[[{"subnet": "10.88.7.0/24"}], [{"subnet": "fd00:88::/64"}]]`
	routes4    = `[{"dst": "0.0.0.0/0"}]`
	routes46   = `[{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]`
	portmap    = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	listFormat = `{"cniVersion": "` + networkVersion + `", "name": "` + networkName + `", "plugins": [
  %s,
  ` + portmap + `
]}
`
)

// ptp is a network of the reference plugins without a switch; each pod has a link
// of its own to the host.
func ptp(dual bool) string {
	return fmt.Sprintf(listFormat, fmt.Sprintf(`{"type": "ptp", "mtu": 1450, "ipam": {"type": "host-local", "ranges": %s, "routes": %s}}`, families(dual)...))
}

// bridge is one with a switch.
func bridge(dual bool) string {
	return fmt.Sprintf(listFormat, fmt.Sprintf(`{"type": "bridge", "bridge": "e2e0", "isGateway": true, "hairpinMode": true, `+
		`"ipam": {"type": "host-local", "ranges": %s, "routes": %s}}`, families(dual)...))
}

func families(dual bool) []any {
	if dual {
		return []any{ranges46, routes46}
	}
	return []any{ranges4, routes4}
}

// elsewhere serves at the addresses outside of all pods, for as long as the tests
// run: ports 80 and 3306 say who asks, and port 53 knows another address than a
// proxy does.
func elsewhere() error {
	for _, address := range []string{elsewhere4, elsewhere6} {
		for _, port := range []int{80, 3306} {
			l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
			if err != nil {
				return err
			}
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = fmt.Fprintf(conn, "elsewhere:%d\n", port)
					_ = conn.Close()
				}
			}()
		}
		conn, err := net.ListenPacket("udp", net.JoinHostPort(address, "53"))
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 1500)
			for {
				n, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				// What asks looks at the last four bytes only.
				_, _ = conn.WriteTo(append(buf[:n:n], 203, 0, 113, 53), from)
			}
		}()
	}
	return nil
}

// links are the interfaces of pods that the host has.
func links(t testing.TB) (names []string) {
	t.Helper()
	all, err := netlink.LinkList()
	require.NoError(t, err)
	for _, l := range all {
		if l.Type() == "veth" {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return string(out)
}

// pluginsVersion is the newest version of the CNI specification that the reference plugins know: the distribution's 1.0.0,
// newer ones 1.1.0, with which the runtime also calls STATUS.
func pluginsVersion(dir string) (string, error) {
	cmd := exec.Command(filepath.Join(dir, "ptp"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader("{}")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("version of the reference plugins: %w", err)
	}
	var known struct{ SupportedVersions []string }
	if err := json.Unmarshal(out, &known); err != nil || len(known.SupportedVersions) == 0 {
		return "", fmt.Errorf("version of the reference plugins: %s", out)
	}
	return known.SupportedVersions[len(known.SupportedVersions)-1], nil
}
