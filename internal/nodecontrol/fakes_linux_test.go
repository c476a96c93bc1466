package nodecontrol_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/status"
)

var errFault = errors.New("a fault of the test")

// namespaces is a [nodecontrol.Namespaces] that knows by UID where each pod's namespace is.
type namespaces struct {
	mu    sync.Mutex
	paths map[types.UID]string // the truth
	noted map[types.UID]string
	// sysctls are those of the noted namespaces, by path and name.
	sysctls map[string]string
	finds   int // how often it was asked for one
}

type ref struct{ ns *netnsexec.NetNS }

func (r ref) NetNS() *netnsexec.NetNS { return r.ns }
func (r ref) Addrs() []netip.Addr     { return nil }
func (r ref) Close() error            { return r.ns.Close() }

func (n *namespaces) Put(a agentsock.Attachment, f *os.File) (nodecontrol.NetNS, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ns, err := netnsexec.FromFile(f, a.NetNS)
	if err != nil {
		return nil, err
	}
	n.noted[types.UID(a.Pod.UID)] = a.NetNS
	return ref{ns}, nil
}

func (n *namespaces) Find(_ context.Context, pod nodecontrol.Sought) (nodecontrol.NetNS, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.finds++
	path, ok := n.paths[pod.UID]
	if !ok { // no process leads there
		path, ok = n.noted[pod.UID]
	}
	if !ok {
		return nil, errors.New("no process of the pod")
	}
	ns, err := netnsexec.Open(path)
	if err != nil {
		return nil, err
	}
	n.noted[pod.UID] = path
	return ref{ns}, nil
}

func (n *namespaces) Known() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.noted))
}

func (n *namespaces) Forget(uid types.UID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.sysctls, func(owner, _ string) bool { return strings.HasPrefix(owner, n.noted[uid]+" ") })
	delete(n.noted, uid)
	return nil
}

func (n *namespaces) Foresee(context.Context, []nodecontrol.Sought) {}

func (n *namespaces) Journal() error { return nil }

func (n *namespaces) KeepSysctl(uid types.UID, name, value string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sysctls[n.noted[uid]+" "+name] = value
	return nil
}

func (n *namespaces) KeptSysctl(uid types.UID, name string) (value string, kept bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	value, kept = n.sysctls[n.noted[uid]+" "+name]
	return value, kept && n.noted[uid] != ""
}

// proxy is a [nodeproxy.Proxy] in this process that listens where Istio's does.
type proxy struct {
	mu    sync.Mutex
	has   map[types.UID]*held
	adds  int
	asked int   // whether it is ready
	down  error // why nothing is connected
	fault func(nodeproxy.Workload) error
	skip  string // an address that it does not listen on
}

type held struct {
	ns     netnsexec.ID
	closes []func() error
}

func (h *held) close() {
	for _, c := range h.closes {
		_ = c()
	}
}

var proxyListens = []string{
	"tcp [::]:15001", "tcp [::]:15006", "tcp [::]:15008", "tcp 127.0.0.1:15053", "tcp [::1]:15053", "udp 127.0.0.1:15053", "udp [::1]:15053",
}

func (p *proxy) Add(_ context.Context, w nodeproxy.Workload) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adds++
	if p.down != nil {
		return p.down
	}
	if p.fault != nil {
		if err := p.fault(w); err != nil {
			return err
		}
	}
	ns, err := netnsexec.FromFile(w.NetNS, string(w.UID))
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	if h := p.has[w.UID]; h != nil {
		if h.ns == ns.ID() {
			return nil
		}
		h.close()
	}
	h := &held{ns: ns.ID()}
	p.has[w.UID] = h
	return ns.Do(func() error {
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 0x539),
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
			}), err)
		}}
		for _, what := range proxyListens {
			network, addr := what[:3], what[4:]
			if what == p.skip {
				continue
			}
			if network == "udp" {
				c, err := lc.ListenPacket(context.Background(), network, addr)
				if err != nil {
					return err
				}
				h.closes = append(h.closes, c.Close)
				continue
			}
			l, err := lc.Listen(context.Background(), network, addr)
			if err != nil {
				return err
			}
			h.closes = append(h.closes, l.Close)
			go serve(l, addr)
		}
		return nil
	})
}

// serve tells each client which listener it reached.
func serve(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte("proxy " + name))
		_ = c.Close()
	}
}

func (p *proxy) Remove(_ context.Context, uid types.UID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.has[uid]; h != nil {
		h.close()
	}
	delete(p.has, uid)
	return nil
}

func (p *proxy) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	return p.down
}

// set changes the proxy; a proxy that goes down loses its listeners.
func (p *proxy) set(f func(*proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
	if p.down != nil {
		for uid, h := range p.has {
			h.close()
			delete(p.has, uid)
		}
	}
}

// in returns the namespace in which the proxy has the pod.
func (p *proxy) in(uid types.UID) netnsexec.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[uid].ns
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adds
}

func (p *proxy) holds(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[uid] != nil
}

// pods is a [nodecontrol.Pods], and the [nodecontrol.Status] of them: an API server of one node.
type pods struct {
	mu         sync.Mutex
	pods       map[types.UID]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	meshes     dialect.Set
	unsynced   bool
	subs       map[int]func(types.UID)
	next       int
	writes     []string
	fault      error
}

func (p *pods) Pods() []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.pods))
}

func (p *pods) ByUID(uid types.UID) *corev1.Pod { return p.get(uid) }

func (p *pods) RuntimeUID(pod *corev1.Pod) types.UID { return pod.UID }

func (p *pods) Known(id status.ID) *corev1.Pod { return p.ByUID(types.UID(id.UID)) }

func (p *pods) Judgement(pod *corev1.Pod) *judge.Judgement {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ns := p.namespaces[pod.Namespace]; ns != nil {
		return judge.New(p.meshes).Pod(pod, ns, nil)
	}
	return judge.New(p.meshes).Pod(pod, nil, errors.New("namespace "+pod.Namespace+" is not known"))
}

func (p *pods) Synced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.unsynced
}

func (p *pods) Subscribe(changed func(types.UID)) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	n := p.next
	p.subs[n] = changed
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.subs, n)
	}
}

// change changes a pod, makes it, or with nil removes it.
func (p *pods) change(uid types.UID, f func(*corev1.Pod)) {
	p.mu.Lock()
	if f == nil {
		delete(p.pods, uid)
	} else {
		pod := p.pods[uid].DeepCopy()
		f(pod)
		p.pods[uid] = pod
	}
	subs := slices.Collect(maps.Values(p.subs))
	p.mu.Unlock()
	for _, changed := range subs {
		changed(uid)
	}
}

func (p *pods) label(namespace, value string) {
	p.mu.Lock()
	p.namespaces[namespace] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"istio.io/dataplane-mode": value}}}
	var uids []types.UID
	for uid, pod := range p.pods {
		if pod.Namespace == namespace {
			uids = append(uids, uid)
		}
	}
	subs := slices.Collect(maps.Values(p.subs))
	p.mu.Unlock()
	for _, changed := range subs {
		for _, uid := range uids {
			changed(uid)
		}
	}
}

func (p *pods) Annotate(_ context.Context, pod *corev1.Pod, key, value string) error {
	p.mu.Lock()
	if p.fault != nil {
		defer p.mu.Unlock()
		return p.fault
	}
	p.writes = append(p.writes, string(pod.UID)+" "+value)
	_, there := p.pods[pod.UID]
	p.mu.Unlock()
	if there {
		p.change(pod.UID, func(pod *corev1.Pod) {
			pod.Annotations = maps.Clone(pod.Annotations)
			if value == "" {
				delete(pod.Annotations, key)
				return
			}
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[key] = value
		})
	}
	return nil
}

func (p *pods) get(uid types.UID) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

func (p *pods) annotation(uid types.UID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid].Annotations["ambient.istio.io/redirection"]
}

// written lists the annotations that were set, oldest first.
func (p *pods) written() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.writes)
}

// probes is a [nodecontrol.Probes] in memory.
type probes struct {
	mu    sync.Mutex
	set   map[netip.Addr]types.UID
	reads int // how often it was asked what it has
}

func (p *probes) Put(uid types.UID, addrs []netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.set, func(_ netip.Addr, owner types.UID) bool { return owner == uid })
	for _, a := range addrs {
		p.set[a] = uid
	}
	return nil
}

func (p *probes) Delete(uid types.UID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.set, func(_ netip.Addr, owner types.UID) bool { return owner == uid })
	return nil
}

func (p *probes) Entries() (map[netip.Addr]types.UID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	return maps.Clone(p.set), nil
}

// lost empties the set.
func (p *probes) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.set)
}

func uidN(i int) types.UID {
	return types.UID(fmt.Sprintf("0b1c7d0e-6f1f-4e0c-9a55-%012x", i))
}

func makePod(uid types.UID, namespace, name string, addrs ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "app"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return pod
}

func open(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	return f
}
