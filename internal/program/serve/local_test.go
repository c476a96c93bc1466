//go:build linux

package serve_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestLocal: what is for the loopback interface is served there whichever addresses are set, and at no other address.
func TestLocal(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("ip"))
	ns := netnstest.New(t)
	require.NoError(t, ns.Do(func() error {
		out, err := exec.Command("ip", "address", "add", "192.0.2.1/32", "dev", "lo").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return exec.Command("ip", "link", "set", "lo", "up").Run()
	}))
	const refused = "refused"
	for name, tt := range map[string]struct {
		health, metrics string
		want            map[string]string
	}{
		"loopback":               {"127.0.0.1:8000", "127.0.0.1:9000", map[string]string{"127.0.0.1:8000": "local", "127.0.0.1:9000": "404", "192.0.2.1:8000": refused}},
		"everywhere":             {":8000", "", map[string]string{"127.0.0.1:8000": "local", "192.0.2.1:8000": "404"}},
		"of one family":          {"0.0.0.0:8000", "", map[string]string{"127.0.0.1:8000": "local", "192.0.2.1:8000": "404"}},
		"an address of the node": {"192.0.2.1:8000", "192.0.2.1:9000", map[string]string{"127.0.0.1:8000": "local", "192.0.2.1:8000": "404", "192.0.2.1:9000": "404", "127.0.0.1:9000": refused}},
		"beside metrics":         {"192.0.2.1:8000", "127.0.0.1:8000", map[string]string{"127.0.0.1:8000": "local", "192.0.2.1:8000": "404"}},
		"metrics alone":          {"", "192.0.2.1:9000", map[string]string{"127.0.0.1:9000": "local", "192.0.2.1:9000": "404"}},
		"nowhere":                {"", "", map[string]string{"127.0.0.1:8000": refused}},
	} {
		t.Run(name, func(t *testing.T) {
			var stop func()
			require.NoError(t, ns.Do(func() (err error) {
				stop, err = serve.Start(serve.Options{
					HealthAddress: tt.health, MetricsAddress: tt.metrics, Metrics: registry(), Log: slog.New(slog.DiscardHandler),
					Local: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "local") }),
				})
				return err
			}))
			defer stop()
			for address, want := range tt.want {
				assert.Equal(t, want, ask(t, ns, address, "/v1/node"), address)
				if want != refused && tt.health == address {
					assert.Equal(t, "ok\n", ask(t, ns, address, "/readyz"), address)
				}
			}
		})
	}
}

// ask returns the answer's text, its status unless it is 200, or refused.
func ask(t *testing.T, ns *netnsexec.NetNS, address, path string) string {
	t.Helper()
	var conn net.Conn
	if err := ns.Do(func() (err error) {
		conn, err = net.Dial("tcp", address)
		return err
	}); err != nil {
		return "refused"
	}
	defer func() { _ = conn.Close() }()
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	if answer.StatusCode != http.StatusOK {
		return fmt.Sprint(answer.StatusCode)
	}
	return string(body)
}
