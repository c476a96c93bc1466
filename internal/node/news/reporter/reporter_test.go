package reporter

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

// TestReporter: what is told, and when: a moment is no news; what lasts is told again; what is over is told once, if people know of it.
func TestReporter(t *testing.T) {
	var list, got []status.News
	r := New(meshcni.Identity{}, func() []status.News { return list }, func(n status.News) { got = append(got, n) })
	start := time.Unix(1000, 0)
	reasons := func(codes ...status.Code) (all []status.News) {
		for _, c := range codes {
			all = append(all, news.NotReady(c, errors.New("x"))...)
		}
		return all
	}
	istio := news.New(status.KindNotice, news.OtherMesh, "chained")
	istio.Where = "istio-cni"
	refused, again := news.Refused("dialect: x"), news.Refused("dialect: y")
	taken := status.News{Kind: status.KindNotice, Code: news.OwnFileTaken, Text: "taken"}
	for _, step := range []struct {
		at    time.Duration
		list  []status.News
		codes []status.Code
	}{
		{at: 0, list: reasons("starting")},
		{at: 1 * time.Second, list: reasons("no-network")},
		{at: 5 * time.Second}, // a moment is no news, neither its begin nor its end
		{at: 20 * time.Second, list: reasons("no-network")},
		{at: 29 * time.Second, list: reasons("no-network")},
		{at: 30 * time.Second, list: reasons("no-network"), codes: []status.Code{"no-network"}},
		{at: 90 * time.Second, list: reasons("no-network", "fight"), codes: []status.Code{"fight"}},
		{at: 91 * time.Second, list: reasons("no-network", "fight", "no-network", "fight")},
		{at: 31 * time.Minute, list: reasons("no-network"), codes: []status.Code{"no-network"}}, // a reminder
		{at: 32 * time.Minute, list: []status.News{istio}, codes: []status.Code{news.OtherMesh, news.Ready}},
		{at: 33 * time.Minute, list: []status.News{istio}},
		{at: 34 * time.Minute, codes: []status.Code{news.OtherMeshGone}},
		{at: 35 * time.Minute, list: reasons("superseded")},
		{at: 99 * time.Minute},
		{at: 100 * time.Minute, list: []status.News{refused, taken}, codes: []status.Code{news.ConfigRefused, news.OwnFileTaken}},
		{at: 101 * time.Minute, list: []status.News{refused, taken}},
		{at: 131 * time.Minute, list: []status.News{refused, taken}, codes: []status.Code{news.ConfigRefused}}, // what needs nobody's attention is told once
		{at: 132 * time.Minute},
		{at: 133 * time.Minute, list: []status.News{again}, codes: []status.Code{news.ConfigRefused}},
		{at: 134 * time.Minute, list: []status.News{news.New(status.KindFinding, news.Detection, "x"), news.New(status.KindPod, news.Uncaptured, "1")}}, // no event's
		{at: 200 * time.Minute},
	} {
		list, got = step.list, nil
		r.update(start.Add(step.at))
		var codes []status.Code
		for _, n := range got {
			codes = append(codes, n.Code)
			assert.NotEmpty(t, n.Text)
			assert.Equal(t, n.Code != news.Ready && n.Code != news.OtherMeshGone && n.Code != news.OwnFileTaken, n.Attention, n.Code)
		}
		assert.ElementsMatch(t, step.codes, codes, step.at)
		if step.at == 32*time.Minute {
			assert.Contains(t, []string{got[0].Text, got[1].Text}, "every new pod of the mesh is captured again; it was: no-network, fight")
		}
	}
}

// TestNewsAreDated by the program's list, or by when they were first seen.
func TestNewsAreDated(t *testing.T) {
	known, start := time.Unix(500, 0), time.Unix(1000, 0)
	dated := news.New(status.KindNotice, news.HookLost, "x")
	dated.Since = known
	r := New(meshcni.Identity{}, func() []status.News { return append(news.NotReady("no-network", errors.New("none")), dated) }, func(status.News) {})
	r.update(start)
	r.update(start.Add(time.Second))
	all := r.News()
	require.Len(t, all, 2)
	assert.Equal(t, []time.Time{start, known}, []time.Time{all[0].Since, all[1].Since})
}

// TestGauges show what is in the list now.
func TestGauges(t *testing.T) {
	var list []status.News
	r := New(meshcni.Identity{}.WithDefaults(), func() []status.News { return list }, nil, NodeGauges()...)
	shown := func() string {
		registry := prometheus.NewRegistry()
		registry.MustRegister(r)
		families, err := registry.Gather()
		require.NoError(t, err)
		var text strings.Builder
		for _, f := range families {
			for _, m := range f.GetMetric() {
				text.WriteString(f.GetName())
				for _, l := range m.GetLabel() {
					text.WriteString("{" + l.GetName() + "=" + l.GetValue() + "}")
				}
				if m.GetGauge().GetValue() == 1 {
					text.WriteString(" 1")
				}
				text.WriteString("\n")
			}
		}
		return text.String()
	}
	assert.Equal(t, "meshcni_cilium_socket_lb\nmeshcni_config_refused\nmeshcni_ready 1\nmeshcni_watch_outdated\n", shown())
	list = append(news.NotReady("no-network", errors.New("none")), news.NotReady("fight", errors.New("x"))...)
	istio := news.New(status.KindNotice, news.OtherMesh, "chained")
	istio.Where = "istio-cni"
	list = append(list, istio, istio, news.Refused("x"), news.New(status.KindNotice, news.PodsOutdated, "x"))
	assert.Equal(t, "meshcni_blocked{code=fight} 1\nmeshcni_blocked{code=no-network} 1\nmeshcni_cilium_socket_lb\nmeshcni_config_refused 1\n"+
		"meshcni_other_mesh{plugin=istio-cni} 1\nmeshcni_ready\nmeshcni_watch_outdated 1\n", shown())
	problems, err := testutil.CollectAndLint(r)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
