package conntables_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/conntables"
	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/status"
)

// node is a proc file system of a node with pods, each with one process.
type node struct {
	t    *testing.T
	root string
	pods []status.ID
}

func newNode(t *testing.T, limit int) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir()}
	n.write("sys/net/netfilter/nf_conntrack_max", fmt.Sprintln(limit))
	n.process(1, "/init", "net:[1]")
	return n
}

func (n *node) write(path, text string) {
	n.t.Helper()
	path = filepath.Join(n.root, path)
	require.NoError(n.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(n.t, os.WriteFile(path, []byte(text), 0o600))
}

func (n *node) process(pid int, cgroup, netns string) {
	n.t.Helper()
	dir := strconv.Itoa(pid)
	n.write(dir+"/cgroup", "0::"+cgroup+"\n")
	n.write(dir+"/stat", fmt.Sprintf("%d (app) S %s%d 0\n", pid, strings.Repeat("0 ", 18), pid))
	require.NoError(n.t, os.MkdirAll(filepath.Join(n.root, dir, "ns"), 0o755))
	_ = os.Remove(filepath.Join(n.root, dir, "ns/net"))
	require.NoError(n.t, os.Symlink(netns, filepath.Join(n.root, dir, "ns/net")))
}

const head = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n"

// pod adds a pod, in the mesh, whose process has the number.
func (n *node) pod(pid, entries, dropped int) status.ID {
	n.t.Helper()
	uid := fmt.Sprintf("00000000-0000-0000-0000-%012d", pid)
	n.process(pid, "/kubepods/pod"+uid+"/c", fmt.Sprintf("net:[%d]", 1000+pid))
	n.table(pid, entries, dropped)
	p := status.ID{Namespace: "shop", Name: fmt.Sprint("cart-", pid), UID: uid}
	n.pods = append(n.pods, p)
	return p
}

// table gives the process's namespace a table, as two processors show it.
func (n *node) table(pid, entries, dropped int) {
	n.t.Helper()
	row := func(dropped int) string {
		return fmt.Sprintf("%08x  00000001 00000002 00000000 00000007 00000003 00000000 00000005 00000000 00000000 %08x 00000009 00000000  00000000 00000000 00000000 00000000\n", entries, dropped)
	}
	n.write(fmt.Sprint(pid, "/net/stat/nf_conntrack"), head+row(dropped-dropped/3)+row(dropped/3))
}

func (n *node) tables(log *bytes.Buffer) *conntables.Tables {
	o := conntables.Options{Pods: func() []status.ID { return n.pods }, ProcRoot: n.root}
	if log != nil {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
	}
	return conntables.New(o).Believing()
}

// TestRead: the fullest comes first; what a processor counted is added up, and the entries are those of the table.
func TestRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1000)
	a, b, c := n.pod(11, 499, 0), n.pod(12, 900, 7), n.pod(13, 0, 0)
	r := n.tables(nil).Read()
	require.NoError(t, r.Err)
	assert.Equal(t, conntables.Reading{Limit: 1000, Tables: []conntables.Table{
		{Pod: b, Entries: 900, Limit: 1000, Dropped: 7}, {Pod: a, Entries: 499, Limit: 1000}, {Pod: c, Limit: 1000},
	}}, r)
	assert.Equal(t, r.Tables[:1], r.Nearly())
	assert.Equal(t, 90, r.Tables[0].Percent())
	assert.Equal(t, 49, r.Tables[1].Percent(), "not rounded up")
}

// TestMetrics: few pods are named, all are counted, and what was dropped stays counted when its pod is gone.
func TestMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1000)
	for pid := 11; pid < 11+12; pid++ {
		n.pod(pid, 500+pid, 1)
	}
	n.pod(30, 1001, 5)
	n.pod(31, 12, 0)
	n.pods = append(n.pods, status.ID{Namespace: "shop", Name: "gone", UID: "00000000-0000-0000-0000-000000000099"})
	tables := n.tables(nil)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(tables)
	fill, err := testutil.GatherAndCount(reg, "meshcni_conntrack_fill_ratio")
	require.NoError(t, err)
	assert.Equal(t, 10, fill)
	rest := func(fullest, nearly, half, dropped int) string {
		return fmt.Sprintf(`# HELP meshcni_conntrack_dropped_packets_total Packets that the connection tracking of pods in the mesh has dropped since each pod's start: where a table is full, the first of each new connection. No series while no pod's can be read.
# TYPE meshcni_conntrack_dropped_packets_total counter
meshcni_conntrack_dropped_packets_total %d
# HELP meshcni_conntrack_fullest_entries Tracked connections of the pod in the mesh that has the most. No series while no pod's can be read.
# TYPE meshcni_conntrack_fullest_entries gauge
meshcni_conntrack_fullest_entries %d
# HELP meshcni_conntrack_limit How many connections the kernel tracks for one pod (nf_conntrack_max). 0: any number, or nothing is tracked. No series while it cannot be read.
# TYPE meshcni_conntrack_limit gauge
meshcni_conntrack_limit 1000
# HELP meshcni_conntrack_pods Pods in the mesh, by how full their connection tracking tables are: below-half, half, nearly-full (from 90 %% on), or unread.
# TYPE meshcni_conntrack_pods gauge
meshcni_conntrack_pods{fill="below-half"} 1
meshcni_conntrack_pods{fill="half"} %d
meshcni_conntrack_pods{fill="nearly-full"} %d
meshcni_conntrack_pods{fill="unread"} 1
`, dropped, fullest, half, nearly)
	}
	names := []string{"meshcni_conntrack_dropped_packets_total", "meshcni_conntrack_fullest_entries", "meshcni_conntrack_limit", "meshcni_conntrack_pods"}
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(rest(1001, 1, 12, 17)), names...))
	n.table(11, 511, 4) // three more
	n.pods = append(n.pods[:12:12], n.pods[13:]...)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(rest(522, 0, 12, 20)), names...))
}

// TestNoLimit: a limit of 0 is none, and a machine that tracks nothing has nothing to read. A file of another form is said.
func TestNoLimit(t *testing.T) {
	t.Parallel()
	n := newNode(t, 0)
	n.pod(11, 1<<20, 0)
	r := n.tables(nil).Read()
	assert.Zero(t, r.Tables[0].Percent())
	assert.Empty(t, r.Nearly())

	n.write("sys/net/netfilter/nf_conntrack_max", "many")
	r = n.tables(nil).Read()
	assert.Equal(t, 1, r.Unread)
	require.ErrorContains(t, r.Err, "read the limit of connection tracking")

	n.write("sys/net/netfilter/nf_conntrack_max", "7")
	for _, text := range []string{"", head, "entries drop\n", "entries drop\n1\n", "entries drop\nx 1\n", "drop\n1\n"} {
		n.write("11/net/stat/nf_conntrack", text)
		r = n.tables(nil).Read()
		assert.Equal(t, 1, r.Unread, "%q", text)
		require.ErrorContains(t, r.Err, "another form", "%q", text)
	}

	require.NoError(t, os.RemoveAll(filepath.Join(n.root, "sys")))
	assert.Equal(t, conntables.Reading{}, n.tables(nil).Read())
}

// TestAnotherProcess: a number that has become another process's is not taken for the pod's; the pod's next process is found.
func TestAnotherProcess(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1000)
	pod := n.pod(11, 10, 2)
	tables := n.tables(nil)
	require.Len(t, tables.Read().Tables, 1)

	require.NoError(t, os.Rename(filepath.Join(n.root, "11"), filepath.Join(n.root, "12")))
	n.write("12/stat", fmt.Sprintf("12 (app) S %s12 0\n", strings.Repeat("0 ", 18)))
	n.process(11, "/kubepods/pod00000000-0000-0000-0000-000000000077/c", "net:[77]")
	n.table(11, 999, 0)
	r := tables.Read()
	assert.Empty(t, r.Tables, "no other process was looked for yet")
	require.ErrorIs(t, r.Err, podnetns.ErrChanged)

	tables.SearchAgain()
	r = tables.Read()
	require.NoError(t, r.Err)
	assert.Equal(t, []conntables.Table{{Pod: pod, Entries: 10, Limit: 1000, Dropped: 2}}, r.Tables)
}

// TestRecent does not read again what was just read.
func TestRecent(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1000)
	n.pod(11, 10, 0)
	tables := n.tables(nil)
	assert.Equal(t, 10, tables.Recent().Tables[0].Entries)
	n.table(11, 20, 0)
	assert.Equal(t, 10, tables.Recent().Tables[0].Entries)
	assert.Equal(t, 20, tables.Read().Tables[0].Entries)
	assert.Equal(t, 20, tables.Recent().Tables[0].Entries)
}

// TestNothingToSee: an agent that does not see its pods' processes says so once, and counts them as unread.
func TestNothingToSee(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1000)
	for _, uid := range []string{"00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"} {
		n.pods = append(n.pods, status.ID{UID: uid})
	}
	var log bytes.Buffer
	tables := n.tables(&log)
	for range 3 {
		r := tables.Read()
		assert.Equal(t, 2, r.Unread)
		require.ErrorIs(t, r.Err, podnetns.ErrNoProcess)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "is not known"), "%s", &log)
}
