package nodecontrol_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// peer connects to the pod again and again until the test ends, as the control plane says: by the tunnel, or in the clear.
type peer struct {
	mu                     sync.Mutex
	tunnelled, refused, in int // connections by the tunnel, those of them that failed, and those in the clear
}

func (s *shop) peer(plane *controlPlane) *peer {
	p := &peer{}
	stop := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for pause := time.NewTicker(2 * time.Millisecond); ; <-pause.C {
			select {
			case <-stop:
				pause.Stop()
				return
			default:
			}
			if !plane.tunnel.Load() {
				_ = exchange(s.world.Out, application)
				p.mu.Lock()
				p.in++
				p.mu.Unlock()
				continue
			}
			err := exchangeByTunnel(s.world.Out, application)
			p.mu.Lock()
			if p.tunnelled++; err != nil {
				p.refused++
			}
			p.mu.Unlock()
		}
	})
	s.t.(*testing.T).Cleanup(func() { close(stop); ended.Wait() })
	return p
}

func (p *peer) counts() (tunnelled, refused, clear int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tunnelled, p.refused, p.in
}

// TestPeersStayInTheTunnel: peers do as the annotation says. Whatever is missing of the proxy, no connection of theirs goes in the clear
// while the pod is in the mesh; what is missing is reported all the same.
func TestPeersStayInTheTunnel(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		n.options = func(o *nodecontrol.Options) { o.ListenTimeout = 50 * time.Millisecond }
		n.made = func(c *nodecontrol.Controller) { c.DeafAfter(0) }
		s := newShop(t, n, -1)
		plane := s.controlPlane(0)
		echo(t, s.world.Pod, application)
		s.join()
		s.until("peers use the tunnel", plane.tunnel.Load)
		peers := s.peer(plane)
		next := func(deaf ...uint16) {
			s.proxy.Kill()
			s.eventually(s.uid, status.StateDrifted, "")
			before, refused, _ := peers.counts()
			s.until("peers are refused meanwhile", func() bool { _, now, _ := peers.counts(); return now > refused })
			s.proxy = nodeproxytest.Start(t, nodeproxytest.Options{Socket: s.socket, Faults: nodeproxytest.Faults{Deaf: deaf}})
			s.until("peers go on", func() bool { now, _, _ := peers.counts(); return now > before })
		}
		served := func() {
			all, refused, _ := peers.counts()
			s.until("peers are served", func() bool {
				now, by, _ := peers.counts()
				return now-by > all-refused+20
			})
		}

		next(15053) // a rollout of a proxy without DNS
		s.eventually(s.uid, status.StateDrifted, "no-listeners")
		served()
		assert.Contains(t, s.state(s.uid).Detail, "udp/ipv4 15053")
		s.until("warned of", func() bool { w := s.c.News(); return len(w) == 1 && assert.Contains(t, w[0].Text, "no-listeners") })
		assert.InDelta(t, 1, s.metric("pods{reason=no-listeners,state=drifted}"), 0)
		s.kill() // an agent that begins with such a proxy
		s.start()
		s.eventually(s.uid, status.StateWaiting, "no-listeners")
		served()

		next(15008) // nobody is there for peers
		s.eventually(s.uid, status.StateWaiting, "no-listeners")
		next()
		s.eventually(s.uid, status.StateCaptured, "captured")
		served()
		_, _, clear := peers.counts()
		assert.Zero(t, clear, "connections in the clear")
		assert.Zero(t, s.proxy.State().Pods[s.uid].Accepted[15006])
		assert.Equal(t, []string{string(s.uid) + " enabled"}, s.pods.written(), "the annotation was never taken back")
		s.leave()
		s.until("peers connect straight", func() bool { _, _, clear := peers.counts(); return clear > 20 })
	})
}

// TestPeersOfABypass: of a pod whose inbound connections pass the proxy, peers are told to do without the tunnel if nobody has listened
// for long, and no sooner.
func TestPeersOfABypass(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	uid := n.pod(1)
	n.pods.change(uid, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"ambient.istio.io/bypass-inbound-capture": "true"}
	})
	n.pods.label("shop", "ambient")
	enabled := string(uid) + " enabled"
	n.start()
	n.eventually(uid, status.StateCaptured, "partly")
	n.until("annotated", func() bool { return n.pods.annotation(uid) == "enabled" })
	n.proxy.set(func(p *proxy) { p.down = errFault })
	n.c.ProxyChanged()
	n.eventually(uid, status.StateDrifted, "no-proxy")
	assert.Equal(t, []string{enabled}, n.pods.written())
	n.kill()
	n.made = func(c *nodecontrol.Controller) { c.DeafAfter(0) }
	n.start()
	n.until("it is taken back", func() bool { return n.pods.annotation(uid) == "pending" })
	n.proxy.set(func(p *proxy) { p.down = nil })
	n.c.ProxyChanged()
	n.eventually(uid, status.StateCaptured, "partly")
	n.until("it is back", func() bool { return n.pods.annotation(uid) == "enabled" })
	assert.Equal(t, []string{enabled, string(uid) + " pending", enabled}, n.pods.written())
}
