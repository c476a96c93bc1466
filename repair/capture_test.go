package repair

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// traces are what a node has of its pods' attachments.
type traces struct {
	networks []inventory.Row
	records  []attachment.Record
	err      error
}

func (t traces) reading() inventory.Reading {
	r := inventory.Reading{Rows: t.networks, Unread: map[inventory.Source]error{inventory.Cache: t.err}}
	for _, record := range t.records {
		r.Rows = append(r.Rows, inventory.Row{ID: record.ID, Source: inventory.Record, Pod: record.Pod, Made: record.Time, Record: &record})
	}
	return r
}

// TestJudge: what is known of a pod by what the node has of it.
func TestJudge(t *testing.T) {
	t.Parallel()
	const uid, ip = "5b1f", "10.0.0.5"
	named := status.ID{Namespace: "shop", Name: "cart", UID: uid}
	at := func(minute int) time.Time { return time.Unix(0, 0).Add(time.Duration(minute) * time.Minute) }
	net := func(container, ip string, minute int, types ...string) inventory.Row {
		return inventory.Row{
			ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}, Source: inventory.Cache, Pod: named,
			Addrs: []netip.Addr{netip.MustParseAddr(ip)}, Types: types, Made: at(minute),
		}
	}
	rec := func(container string, selected bool, minute int) attachment.Record {
		r := attachment.Record{ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}, Pod: named, Selected: selected, Reason: "excluded-namespace", Time: at(minute)}
		if selected {
			r.Reason, r.Backend = "selected", "nftables"
		}
		return r
	}
	change := func(n inventory.Row, f func(*inventory.Row)) inventory.Row { f(&n); return n }
	changeRec := func(r attachment.Record, f func(*attachment.Record)) attachment.Record { f(&r); return r }
	nets := func(n ...inventory.Row) []inventory.Row { return n }
	recs := func(r ...attachment.Record) []attachment.Record { return r }
	hooked := func(container string) inventory.Row {
		return inventory.Row{ID: attachment.ID{ContainerID: container}, Source: inventory.Runtime, Pod: named}
	}
	unnamed := func(n *inventory.Row) { n.Pod.UID = "" }
	multus := func(n *inventory.Row) { n.Source = inventory.Multus }
	wrong := errors.New("input/output error")
	static := func(p *corev1.Pod) {
		p.UID, p.Annotations = "api", map[string]string{corev1.MirrorPodAnnotationKey: "5b1f6a0c9d8e7f6a5b4c3d2e1f0a9b8c"}
	}
	ofStatic := func(name string, n inventory.Row) inventory.Row {
		n.Pod.UID, n.Pod.Name = "5b1f6a0c9d8e7f6a5b4c3d2e1f0a9b8c", name
		return n
	}
	for name, c := range map[string]struct {
		traces
		pod  func(*corev1.Pod)
		code status.Code
	}{
		"our ADD, and its record":                       {traces: traces{nets(net("a", ip, 1, "ptp", "meshcni")), recs(rec("a", true, 1)), nil}, code: statuscode.Recorded},
		"our ADD, before there were records":            {traces: traces{nets(net("a", ip, 1, "ptp", "meshcni")), nil, nil}, code: statuscode.Attached},
		"another's list":                                {traces: traces{nets(net("a", ip, 1, "ptp", "portmap")), nil, nil}, code: status.CodeNotCalled},
		"another's list, in a cache that has more":      {traces: traces{nets(net("a", ip, 1, "ptp")), nil, wrong}, code: status.CodeNotCalled},
		"a type like ours":                              {traces: traces{nets(net("a", ip, 1, "meshcni2")), nil, nil}, code: status.CodeNotCalled},
		"passed over, and would not be now":             {traces: traces{nets(net("a", ip, 1, "ptp", "meshcni")), recs(rec("a", false, 1)), nil}, code: statuscode.PassedOver},
		"the agent's own":                               {traces: traces{nil, recs(changeRec(rec("a", false, 1), func(r *attachment.Record) { r.Reason = "agent-pod" })), nil}, code: statuscode.Recorded},
		"a record alone: the cache is not there":        {traces: traces{nil, recs(rec("a", true, 1)), wrong}, code: statuscode.Recorded},
		"nothing at all":                                {code: statuscode.NoTrace},
		"nothing, and not all can be read":              {traces: traces{nil, nil, wrong}, code: statuscode.Unreadable},
		"another pod's":                                 {traces: traces{nets(change(net("a", ip, 1, "ptp"), func(n *inventory.Row) { n.Pod.UID = "other" })), recs(changeRec(rec("b", true, 1), func(r *attachment.Record) { r.Pod.UID = "other" })), nil}, code: statuscode.NoTrace},
		"no UID from the runtime, its address":          {traces: traces{nets(change(net("a", ip, 1, "ptp"), unnamed)), nil, nil}, code: status.CodeNotCalled},
		"no UID, the address of one before it":          {traces: traces{nets(change(net("a", "10.0.0.4", 1, "ptp"), unnamed)), nil, nil}, code: statuscode.NoTrace},
		"a record without UID, of its sandbox":          {traces: traces{nets(change(net("a", ip, 1, "ptp", "meshcni"), unnamed)), recs(changeRec(rec("a", true, 1), func(r *attachment.Record) { r.Pod.UID = "" })), nil}, code: statuscode.Recorded},
		"a record without UID, of a namesake":           {traces: traces{nil, recs(changeRec(rec("a", true, 1), func(r *attachment.Record) { r.Pod.UID = "" })), nil}, code: statuscode.NoTrace},
		"after a reboot: the old sandbox was captured":  {traces: traces{nets(net("old", "10.0.0.4", 1, "ptp", "meshcni"), net("new", ip, 2, "ptp")), nil, nil}, code: status.CodeNotCalled},
		"after a reboot: the new one is":                {traces: traces{nets(net("new", ip, 2, "ptp", "meshcni"), net("old", "10.0.0.4", 1, "ptp")), nil, nil}, code: statuscode.Attached},
		"the old sandbox's record says nothing":         {traces: traces{nets(net("new", ip, 2, "ptp")), recs(rec("old", true, 1)), nil}, code: status.CodeNotCalled},
		"the status has the old address still":          {traces: traces{nets(net("old", ip, 1, "ptp", "meshcni"), net("new", "10.0.0.6", 2, "ptp")), nil, nil}, code: statuscode.Attached},
		"no address is known: the latest counts":        {traces: traces{nets(net("old", "10.0.0.7", 1, "ptp", "meshcni"), net("new", "10.0.0.6", 2, "ptp")), nil, nil}, code: status.CodeNotCalled},
		"a list that libcni did not keep":               {traces: traces{nets(net("a", ip, 1)), nil, nil}, code: statuscode.Unreadable},
		"Multus, and its cache is not there":            {traces: traces{nets(net("a", ip, 1, "multus-shim")), nil, nil}, code: statuscode.Delegated},
		"Multus, and it did not call us":                {traces: traces{nets(net("a", ip, 1, "multus"), change(net("a", ip, 1, "ptp"), multus)), nil, nil}, code: status.CodeNotCalled},
		"Multus called us":                              {traces: traces{nets(net("a", ip, 1, "multus"), change(net("a", "10.1.0.1", 1, "meshcni"), multus)), nil, nil}, code: statuscode.Attached},
		"Multus called us, which only our record says":  {traces: traces{nets(net("a", ip, 1, "multus")), recs(changeRec(rec("a", true, 1), func(r *attachment.Record) { r.Network, r.IfName = "meshcni", "net1" })), nil}, code: statuscode.Recorded},
		"one attachment passed over, another captured":  {traces: traces{nil, recs(rec("a", true, 1), changeRec(rec("a", false, 2), func(r *attachment.Record) { r.IfName = "net1" })), nil}, code: statuscode.Recorded},
		"the runtime's word, and no other":              {traces: traces{nets(hooked("a")), nil, nil}, code: statuscode.NoTrace},
		"the runtime's word, and others unread":         {traces: traces{nets(hooked("a")), nil, wrong}, code: statuscode.Unreadable},
		"the runtime's word against the old address":    {traces: traces{nets(hooked("new"), net("old", ip, 1, "ptp", "meshcni"), net("new", "10.0.0.6", 2, "ptp")), nil, nil}, code: status.CodeNotCalled},
		"the runtime's word against a record":           {traces: traces{nets(hooked("new"), net("old", ip, 1, "ptp", "meshcni")), recs(rec("old", true, 1)), nil}, code: statuscode.NoTrace},
		"a static pod, by the UID that the runtime has": {traces: traces{nets(ofStatic("cart", net("a", ip, 1, "ptp"))), nil, nil}, pod: static, code: status.CodeNotCalled},
		"what it mirrors by its own word is another":    {traces: traces{nets(ofStatic("other", net("a", ip, 1, "ptp"))), nil, nil}, pod: static, code: statuscode.NoTrace},
		"it says that it mirrors a pod of the API": {traces: traces{nets(net("a", ip, 1, "ptp")), nil, nil}, code: statuscode.NoTrace, pod: func(p *corev1.Pod) {
			p.UID, p.Annotations = "api", map[string]string{corev1.MirrorPodAnnotationKey: uid}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: uid},
				Status:     corev1.PodStatus{PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
			}
			if c.pod != nil {
				c.pod(pod)
			}
			got := traced(c.reading(), pod, []string{"meshcni"})
			assert.Equal(t, c.code, got.Reason, got.Detail)
			assert.Equal(t, got.Row().States, []status.State{got.State})
			assert.NotEmpty(t, got.Detail)
		})
	}
}
