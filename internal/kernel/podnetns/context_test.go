package podnetns_test

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
)

// ending ends a context with the first control groups that are read.
type ending struct {
	podnetns.Proc
	end  func()
	read atomic.Int32
}

func (e *ending) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, "/cgroup") && name != "1/cgroup" {
		e.read.Add(1)
		e.end()
	}
	return e.Proc.Open(name)
}

func (e *ending) ReadLink(name string) (string, error) { return fs.ReadLink(e.Proc, name) }

func (e *ending) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(e.Proc, name) }

// TestContextEndsTheSearch: the search ends between two processes.
func TestContextEndsTheSearch(t *testing.T) {
	t.Parallel()
	p := newProc()
	for i := range 100 {
		p.add(100+i, "0::/kubepods/pod"+uid+"/1", 100, podNS, "10.244.1.5")
	}
	ctx, cancel := context.WithCancel(t.Context())
	e := &ending{Proc: p, end: cancel}
	_, err := podnetns.Find(ctx, e, uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.ErrorIs(t, err, context.Canceled)
	assert.EqualValues(t, 1, e.read.Load())
}

// stuck is a proc file system in which a look into some pods' namespaces takes until its time is over.
type stuck struct {
	proc
	pods map[string]bool
}

func (s stuck) Has(ctx context.Context, f podnetns.Found, want podnetns.Wanted) (podnetns.Held, error) {
	if s.pods[f.UID] {
		<-ctx.Done()
		return podnetns.Held{}, context.Cause(ctx)
	}
	return s.proc.Has(ctx, f, want)
}

// TestSlowPodsAreBounded: a pod into whose namespaces a look takes long has two seconds, however many they are, and no other pod's look
// fails for it. When the context ends, those that are left have its error.
func TestSlowPodsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{newProc(), map[string]bool{}}
		addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5")}
		wanted := map[string]podnetns.Wanted{uid: {Addrs: addrs}}
		s.add(10, "0::/kubepods/pod"+uid+"/1", 100, podNS, "10.244.1.5")
		for i := range 3 {
			slow := fmt.Sprintf("%s%d", otherUID[:len(otherUID)-1], 3+i)
			s.pods[slow], wanted[slow] = true, podnetns.Wanted{Addrs: addrs}
			for j := range 5 {
				s.add(100+10*i+j, "0::/kubepods/pod"+slow+"/1", 100+j, fmt.Sprintf("net:[%d]", 5000+10*i+j))
			}
		}
		begin := time.Now()
		all, err := podnetns.FindAll(t.Context(), s, wanted)
		require.NoError(t, err)
		assert.Equal(t, 10*time.Second, time.Since(begin))
		require.NoError(t, all[uid].Err)
		for slow := range s.pods {
			require.ErrorIs(t, all[slow].Err, podnetns.ErrLong)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		all, err = podnetns.FindAll(ctx, s, wanted)
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(begin))
		require.NoError(t, all[uid].Err)
		for slow := range s.pods {
			require.ErrorIs(t, all[slow].Err, context.DeadlineExceeded)
		}
	})
}
