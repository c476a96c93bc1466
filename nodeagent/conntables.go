//go:build linux

package nodeagent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/kernel/conntables"
	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/status"
)

// tables knows how full the connection tracking tables of the node's pods in the mesh are.
type tables struct{ *conntables.Tables }

func newTables(s Config, states func() []status.Pod, podByUID func(string) *corev1.Pod, log *slog.Logger) tables {
	return tables{conntables.New(conntables.Options{Identity: s.Identity, ProcRoot: s.ProcRoot, Log: log, Want: func(uid string) podnetns.Wanted {
		return wanted(podByUID(uid))
	}, Pods: func() (pods []status.ID) {
		for _, p := range states() {
			if p.State != status.StateOutside {
				pods = append(pods, p.ID)
			}
		}
		return pods
	}})}
}

// wanted returns what is known of a pod's network namespace. nil: nothing.
func wanted(pod *corev1.Pod) (w podnetns.Wanted) {
	if pod == nil {
		return w
	}
	w.OwnUsers = podid.OwnUsers(pod)
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			w.Addrs = append(w.Addrs, a)
		}
	}
	return w
}

// percent returns how full the pods' tables are.
func (t tables) percent() map[status.ID]int {
	full := map[status.ID]int{}
	for _, table := range t.Recent().Tables {
		full[table.Pod] = table.Percent()
	}
	return full
}

// maxFull bounds the pods that a warning names.
const maxFull = 3

// News says whose new connections are about to stall.
func (t tables) News() []status.News { return nearlyFull(t.Recent()) }

func nearlyFull(r conntables.Reading) []status.News {
	full := r.Nearly()
	if len(full) == 0 {
		return nil
	}
	var names []string
	for _, table := range full[:min(len(full), maxFull)] {
		names = append(names, fmt.Sprintf("%s/%s has %d", table.Pod.Namespace, table.Pod.Name, table.Entries))
	}
	if more := len(full) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return []status.News{news.New(status.KindFinding, news.Conntrack, fmt.Sprintf(
		"the connection tracking tables of %d of the node's pods are nearly full, and a full one lets no new connection through: %s of %d (nf_conntrack_max)",
		len(full), strings.Join(names, ", "), r.Limit))}
}
