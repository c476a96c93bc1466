// Package reporter makes what a program says of its node from one list: its metrics, and events, of which Kubernetes forgets each after an hour and
// which are therefore repeated. Each part of a program adds to the list what it knows; none tells anybody itself.
package reporter

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

const (
	// every is the interval at which a program's list is looked at.
	every = time.Second
	// moment bounds the time for which a reason that new pods are not captured is no news: starts and upgrades have such reasons.
	moment = 10 * time.Second
	// remindAfter is the wait until what still needs attention is told again. Kubernetes forgets an event after an hour by default
	// (kube-apiserver --event-ttl).
	remindAfter = 30 * time.Minute
)

var (
	// unremarkable are reasons that come with every start and every upgrade.
	unremarkable = []status.Code{"starting", "superseded"}
	// lasting are those that have lasted when they are first seen.
	lasting = []status.Code{"fight"}
)

// Gauge is a metric that shows the news of a kind, and of a code if there is one. With a label, there is a series of value 1 for each of
// them, labelled with its Where, or with its code where the gauge has none. Otherwise it is 1 while there is any, else 0.
type Gauge struct {
	Name, Help, Label string
	Kind              status.Kind
	Code              status.Code
	// Absent turns the values of a gauge without a label round.
	Absent bool
}

// NodeGauges are those of a node's agent.
func NodeGauges() []Gauge {
	return []Gauge{
		{Name: "ready", Help: "1 when every new pod on this node will be captured.", Kind: status.KindReadiness, Absent: true},
		{Name: "blocked", Help: "1 for each reason why new pods on this node are not captured, by its code. No series when they are.", Label: "code", Kind: status.KindReadiness},
		{Name: "other_mesh", Help: "1 for each plugin of another mesh in the list that the runtime loads, by its type. No series without one.", Label: "plugin", Kind: status.KindNotice, Code: news.OtherMesh},
		{Name: "config_refused", Help: "1 while a configuration is refused, and an older one is in force.", Kind: status.KindNotice, Code: news.ConfigRefused},
		{Name: "cilium_socket_lb", Help: "1: the loaded list is Cilium's, and it is not seen that Cilium leaves pods' connections to Services to their rules; else 0.", Kind: status.KindNotice, Code: news.Cilium},
		Outdated(news.PodsOutdated),
	}
}

// Outdated shows that a program's watches have been told nothing for long, as news of this code.
func Outdated(code status.Code) Gauge {
	return Gauge{
		Name: "watch_outdated", Help: "1 while the API server has told nothing for over a minute of the node's pods, or the taint controller of nodes or agents, else 0.",
		Kind: status.KindNotice, Code: code,
	}
}

// Reporter tells people what is in a program's list. As a Prometheus collector it has its gauges.
type Reporter struct {
	list   func() []status.News
	tell   func(status.News)
	gauges []Gauge
	descs  []*prometheus.Desc

	mu   sync.Mutex
	open map[subject]*trouble
	told []string // the codes of readiness that have been told of since it was given
}

// subject tells news apart.
type subject struct {
	kind  status.Kind
	code  status.Code
	where string
}

func about(n status.News) subject { return subject{n.Kind, n.Code, n.Where} }

// trouble dates what is in the list.
type trouble struct{ since, told time.Time }

// New calls tell, once it runs, with what an event is to tell: a notice at once, a reason of readiness after ten seconds, both again
// every half an hour while they need attention, and that they are over. Tell must return at once.
func New(id meshcni.Identity, list func() []status.News, tell func(status.News), gauges ...Gauge) *Reporter {
	r := &Reporter{list: list, tell: tell, gauges: gauges, open: map[subject]*trouble{}}
	for _, g := range gauges {
		var labels []string
		if g.Label != "" {
			labels = []string{g.Label}
		}
		r.descs = append(r.descs, prometheus.NewDesc(id.Metric(g.Name), g.Help, labels, nil))
	}
	return r
}

// Run works until the context ends.
func (r *Reporter) Run(ctx context.Context) {
	for {
		r.update(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// News returns the list, in which each has its date.
func (r *Reporter) News() []status.News {
	all := r.list()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range all {
		if t := r.open[about(n)]; t != nil && n.Since.IsZero() {
			all[i].Since = t.since
		}
	}
	return all
}

// update tells what has come, what lasts and what is over at now.
func (r *Reporter) update(now time.Time) {
	all := r.list()
	r.mu.Lock()
	defer r.mu.Unlock()
	here, blocked := map[subject]bool{}, false
	for _, n := range all {
		blocked = blocked || n.Kind == status.KindReadiness
		if key := about(n); !here[key] {
			here[key] = true
			r.look(now, n)
		}
	}
	for key, t := range r.open {
		if here[key] {
			continue
		}
		delete(r.open, key)
		if key.code == news.OtherMesh && !t.told.IsZero() {
			r.tell(over(news.OtherMeshGone, key.where+" is no longer chained with our plugin; delete the pods that started with both"))
		}
	}
	if !blocked && len(r.told) > 0 {
		r.tell(over(news.Ready, "every new pod of the mesh is captured again; it was: "+strings.Join(r.told, ", ")))
		r.told = nil
	}
}

// look tells of one of the list, if it is time.
func (r *Reporter) look(now time.Time, n status.News) {
	t := r.open[about(n)]
	if t == nil {
		t = &trouble{since: now}
		r.open[about(n)] = t
	}
	due := t.since
	ready := n.Kind == status.KindReadiness
	switch {
	case n.Kind != status.KindNotice && !ready, ready && slices.Contains(unremarkable, n.Code), !t.told.IsZero() && !n.Attention:
		return
	case !t.told.IsZero():
		due = t.told.Add(remindAfter)
	case ready && !slices.Contains(lasting, n.Code):
		due = due.Add(moment)
	}
	if now.Before(due) {
		return
	}
	t.told = now
	if ready {
		if !slices.Contains(r.told, string(n.Code)) {
			r.told = append(r.told, string(n.Code))
		}
		n.Text = "not ready: " + n.Text
	}
	r.tell(n)
}

// over is news of what needs no attention any more.
func over(code status.Code, text string) status.News {
	return status.News{Kind: status.KindNotice, Code: code, Text: text}
}

// Describe implements [prometheus.Collector].
func (r *Reporter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range r.descs {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (r *Reporter) Collect(ch chan<- prometheus.Metric) {
	all := r.list()
	for i, g := range r.gauges {
		labels := map[string]bool{}
		for _, n := range all {
			if n.Kind != g.Kind || g.Code != "" && n.Code != g.Code {
				continue
			}
			label := n.Where
			if g.Code == "" {
				label = string(n.Code)
			}
			labels[label] = true
		}
		if g.Label == "" {
			value := 0.0
			if (len(labels) > 0) != g.Absent {
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(r.descs[i], prometheus.GaugeValue, value)
			continue
		}
		for label := range labels {
			ch <- prometheus.MustNewConstMetric(r.descs[i], prometheus.GaugeValue, 1, label)
		}
	}
}
