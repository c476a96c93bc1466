package ambient_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// TestMarkIsNoProofOfPrivilege: with the capability that containerd gives to every container, the kernel lets a process
// set the node proxy's mark, and what has the mark passes by the mesh. So it is a bypass.
func TestMarkIsNoProofOfPrivilege(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	var system unix.Utsname
	var major, minor int
	require.NoError(t, unix.Uname(&system))
	_, err := fmt.Sscanf(unix.ByteSliceToString(system.Release[:]), "%d.%d", &major, &minor)
	require.NoError(t, err)
	needsAdmin := major < 5 || major == 5 && minor < 17

	ns := netnstest.New(t)
	mark := func(capabilities uint32) (err error) {
		require.NoError(t, ns.Do(func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var had, only [2]unix.CapUserData
			if err := unix.Capget(&header, &had[0]); err != nil {
				return err
			}
			only = had
			only[0].Effective, only[1].Effective = capabilities, 0
			fd, failed := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if failed != nil {
				return failed
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Capset(&header, &only[0]); err != nil {
				return err
			}
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, ambient.ProxyMark)
			return unix.Capset(&header, &had[0])
		}))
		return err
	}
	require.ErrorIs(t, mark(0), unix.EPERM)
	require.NoError(t, mark(1<<unix.CAP_NET_ADMIN))
	if needsAdmin {
		require.ErrorIs(t, mark(1<<unix.CAP_NET_RAW), unix.EPERM)
	} else {
		require.NoError(t, mark(1<<unix.CAP_NET_RAW))
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{ambient.DataplaneMode: "ambient"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}
	plan, err := ambient.New(ambient.Options{}).Plan(dialect.Subject{Pod: pod}, dialect.Options{})
	require.NoError(t, err)
	assert.Equal(t, []dialect.BypassCode{dialect.BypassNetRaw}, plan.BypassCodes())
	for given, want := range map[uint32]trace.Verdict{0: trace.Redirect, ambient.ProxyMark: trace.Pass} {
		r, err := trace.Trace(plan.Ruleset, trace.Packet{
			Direction: trace.Out, Proto: ruleset.TCP, Dst: netip.MustParseAddrPort("10.96.5.5:80"), UID: 1000, Mark: given,
		})
		require.NoError(t, err)
		assert.Equal(t, want, r.Verdict, "mark %#x", given)
	}
}
