package netprobe_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/internal/netprobe"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// inside is the variable that tells this test's own process in a network namespace what to do.
const inside = "STANDIN_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		err := netprobe.Serve(context.Background(), netprobe.Options{Name: "pod/app", Listen: []uint16{15001, 8080}, Control: 9000})
		println(err.Error())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestServe: who connects hears at which port that was, and where the connection was to go before the kernel changed it; who asks
// hears how a connection went.
func TestServe(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nft"))
	ns := netnstest.New(t)
	do := func(fn func()) {
		require.NoError(t, ns.Do(func() error {
			fn()
			return nil
		}))
	}
	var server *exec.Cmd
	do(func() {
		out, err := exec.Command("nft", "add table inet t; add chain inet t o { type nat hook output priority -100; }; add rule inet t o tcp dport 7000 redirect to :15001; "+
			"add rule inet t o tcp dport 7002 redirect to :7003").CombinedOutput()
		require.NoError(t, err, string(out))
		server = exec.Command(os.Args[0])
		server.Env = append(os.Environ(), inside+"=1")
		server.Stderr = os.Stderr
		require.NoError(t, server.Start())
	})
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		failed := ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, failed
	}}}
	get := func(path string) (status int, text []byte, err error) {
		response, err := client.Get("http://127.0.0.1:9000" + path)
		if err != nil {
			return 0, nil, err
		}
		defer func() { _ = response.Body.Close() }()
		text, err = io.ReadAll(response.Body)
		return response.StatusCode, text, err
	}
	for { // until it listens
		if status, _, err := get(netprobe.ReadyPath); err == nil {
			require.Equal(t, http.StatusOK, status)
			break
		}
		require.NoError(t, t.Context().Err())
	}
	dial := func(to string) (d netprobe.Dialed) {
		t.Helper()
		status, text, err := get(netprobe.DialPath + "?to=" + url.QueryEscape(to))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, string(text))
		require.NoError(t, json.Unmarshal(text, &d))
		return d
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		captured, plain := netip.AddrPortFrom(netip.MustParseAddr(ip), 7000), netip.AddrPortFrom(netip.MustParseAddr(ip), 8080)
		d := dial(captured.String())
		if assert.NotNil(t, d.Answer, d.Error) {
			assert.Equal(t, netprobe.Answer{Name: "pod/app", Port: 15001, Original: captured, From: d.Answer.From}, *d.Answer)
			assert.Equal(t, captured.Addr(), d.Answer.From.Addr())
		}
		d = dial(plain.String())
		if assert.NotNil(t, d.Answer, d.Error) {
			assert.Equal(t, uint16(8080), d.Answer.Port)
			assert.Equal(t, plain, d.Answer.Original)
		}
	}
	assert.Equal(t, netprobe.Dialed{Error: "connection refused"}, dial("127.0.0.1:7002"))
	for _, bad := range []string{"", "example.com:80", "127.0.0.1", "127.0.0.1:http"} {
		status, _, err := get(netprobe.DialPath + "?to=" + url.QueryEscape(bad))
		require.NoError(t, err)
		assert.Equal(t, http.StatusBadRequest, status, bad)
	}
}
