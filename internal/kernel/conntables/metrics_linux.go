package conntables

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/status"
)

// maxNamed bounds the pods that the metrics name: a node's are up to some hundred, and in a cluster each would be a series.
const maxNamed = 10

// descriptions are of the metrics, by which a scrape knows them.
type descriptions struct{ limit, fullest, fill, pods, dropped *prometheus.Desc }

func describe(id meshcni.Identity) descriptions {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(id.Metric("conntrack_"+name), help, labels, nil)
	}
	return descriptions{
		limit: describe("limit",
			"How many connections the kernel tracks for one pod (nf_conntrack_max). 0: any number, or nothing is tracked. No series while it cannot be read."),
		fullest: describe("fullest_entries",
			"Tracked connections of the pod in the mesh that has the most. No series while no pod's can be read."),
		fill: describe("fill_ratio",
			"How full the connection tracking tables of the fullest pods in the mesh are: 1 is full. Only from half full on, and ten pods at most.",
			"pod_namespace", "pod_name"),
		pods: describe("pods",
			"Pods in the mesh, by how full their connection tracking tables are: below-half, half, nearly-full (from 90 % on), or unread.", "fill"),
		dropped: describe("dropped_packets_total",
			"Packets that the connection tracking of pods in the mesh has dropped since each pod's start: where a table is full, the first of each new connection. No series while no pod's can be read."),
	}
}

// Describe implements [prometheus.Collector].
func (t *Tables) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{t.desc.limit, t.desc.fullest, t.desc.fill, t.desc.pods, t.desc.dropped} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. It reads all tables anew. What cannot be read has no series: a 0 would look healthy.
func (t *Tables) Collect(ch chan<- prometheus.Metric) {
	r := t.Read()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if !r.noLimit {
		gauge(t.desc.limit, float64(r.Limit))
	}
	fullest := 0
	pods := map[string]int{"below-half": 0, "half": 0, "nearly-full": 0, "unread": r.Unread}
	named := map[status.ID]bool{} // one that is made anew under its name is known twice for a while
	for _, table := range r.Tables {
		fullest = max(fullest, table.Entries)
		fill := "below-half"
		switch percent := table.Percent(); {
		case percent >= Nearly:
			fill = "nearly-full"
		case percent >= half:
			fill = "half"
		}
		pods[fill]++
		name := status.ID{Namespace: table.Pod.Namespace, Name: table.Pod.Name}
		if fill != "below-half" && len(named) < maxNamed && !named[name] {
			named[name] = true
			gauge(t.desc.fill, float64(table.Entries)/float64(table.Limit), table.Pod.Namespace, table.Pod.Name)
		}
	}
	for fill, n := range pods {
		gauge(t.desc.pods, float64(n), fill)
	}
	if r.noLimit || len(r.Tables) == 0 && r.Unread > 0 {
		return
	}
	gauge(t.desc.fullest, float64(fullest))
	t.mu.Lock()
	dropped := t.dropped
	t.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(t.desc.dropped, prometheus.CounterValue, float64(dropped))
}
