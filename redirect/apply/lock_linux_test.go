package apply

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestLockIsNobodyElses: who was handed a namespace, as a proxy is by the agent, neither passes the lock of who handed it over, nor
// keeps it.
func TestLockIsNobodyElses(t *testing.T) {
	ns := netnstest.New(t)
	given, err := unix.FcntlInt(uintptr(ns.Fd()), unix.F_DUPFD_CLOEXEC, 0) // as SCM_RIGHTS does
	require.NoError(t, err)
	file := os.NewFile(uintptr(given), "given")
	defer func() { _ = file.Close() }()
	other, err := netnsexec.FromFile(file, "given")
	require.NoError(t, err)
	defer func() { _ = other.Close() }()

	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	unlock, err := lock(impatient, ns)
	require.NoError(t, err)
	_, err = lock(impatient, other)
	require.ErrorIs(t, err, context.Canceled, "it is locked")
	require.NoError(t, unix.Flock(given, unix.LOCK_UN), "not theirs to unlock")
	_, err = lock(impatient, other)
	require.ErrorIs(t, err, context.Canceled, "it is still locked")
	unlock()

	unlock, err = lock(impatient, other)
	require.NoError(t, err)
	defer unlock()
	_, err = lock(impatient, ns)
	require.ErrorIs(t, err, context.Canceled, "it is locked")
}

// holds is the variable by which this test binary locks the namespace that it was handed, says so, and waits to be killed.
const holds = "MESHCNI_APPLY_HOLDS_LOCK"

func init() {
	if os.Getenv(holds) == "" {
		return
	}
	ns, err := netnsexec.Open("/proc/self/fd/3")
	if err == nil {
		_, err = lock(context.Background(), fdOf{ns, 3})
	}
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("locked")
	for {
		_ = unix.Pause()
	}
}

// fdOf is a namespace by the descriptor that was handed over.
type fdOf struct {
	*netnsexec.NetNS
	fd int
}

func (f fdOf) Fd() int { return f.fd }

// TestLockEndsWithItsHolder: a process that is killed while it changes a namespace leaves it to others, whoever else has it open.
func TestLockEndsWithItsHolder(t *testing.T) {
	ns := netnstest.New(t)
	given, err := unix.FcntlInt(uintptr(ns.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(given), "given")
	defer func() { _ = file.Close() }()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = out.Close() }()
	p, err := os.StartProcess("/proc/self/exe", []string{"holder"}, &os.ProcAttr{
		Env: append(os.Environ(), holds+"=1"), Files: []*os.File{nil, in, os.Stderr, file},
	})
	require.NoError(t, err)
	require.NoError(t, in.Close())
	said := make([]byte, 6)
	_, err = out.Read(said)
	require.NoError(t, err)
	require.Equal(t, "locked", string(said))
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	again, err := netnsexec.Open(ns.Path())
	require.NoError(t, err)
	defer func() { _ = again.Close() }()
	_, err = lock(impatient, again)
	require.ErrorIs(t, err, context.Canceled, "it is locked")
	require.NoError(t, p.Kill())
	_, err = p.Wait()
	require.NoError(t, err)
	unlock, err := lock(impatient, again)
	require.NoError(t, err, "its holder is dead")
	unlock()
}
