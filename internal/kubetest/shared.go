package kubetest

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// shared is the server of a package's tests.
var shared struct {
	once    sync.Once
	options Options
	server  *Server
	dir     string
	err     error
}

// Main is for a package's TestMain: it runs the tests and then stops the server
// that they shared, if one asked for it. The exit code is for os.Exit.
func Main(m *testing.M, o Options) (code int) {
	shared.options = o
	defer func() {
		if shared.server != nil {
			shared.server.Stop()
		}
		if shared.dir != "" {
			_ = os.RemoveAll(shared.dir)
		}
	}()
	return m.Run()
}

// Shared is the server of all tests of a package that do not harm it. The first
// to ask starts it; [Main] stops it. It requires [Servers].
func Shared(tb testing.TB) *Server {
	tb.Helper()
	netnstest.Require(tb, Servers)
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "meshcni-kubetest"); shared.err == nil {
			shared.server, shared.err = Start(shared.dir, shared.options)
		}
	})
	require.NoError(tb, shared.err)
	return shared.server
}

// Own is a server of one test, stopped when that ends. It requires [Servers].
func Own(tb testing.TB, o Options) *Server {
	tb.Helper()
	netnstest.Require(tb, Servers)
	s, err := Start(tb.TempDir(), o)
	require.NoError(tb, err)
	tb.Cleanup(s.Stop)
	return s
}
