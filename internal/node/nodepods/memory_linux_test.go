package nodepods_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	nodeapi "github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/nodepods"
)

// watchURL names the API server of a process that only watches: a test's own would count in its memory.
const watchURL = "MESHCNI_TEST_WATCH"

const annotationBytes = 256 << 10 // the API server's limit for all annotations of an object

// counts are how many pods there are of each kind.
type counts struct{ failed, ended, running int }

var (
	listed   = counts{1600, 5000, 110}
	streamed = counts{200, 500, 20} // a watch in JSON takes long
)

func TestMain(m *testing.M) {
	if url := os.Getenv(watchURL); url != "" {
		os.Exit(watchOnly(url))
	}
	os.Exit(m.Run())
}

// watchOnly watches until it knows all pods, says what that took, and ends.
func watchOnly(url string) int {
	debug.SetGCPercent(30) // as the agent does
	client, err := nodeapi.New(meshcni.Identity{}, &rest.Config{Host: url, QPS: -1}, "n1")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w, err := nodepods.New(nodepods.Options{API: client, Dialects: builtin.All()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	changed := make(chan struct{}, 1)
	defer w.Subscribe(func(types.UID) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	go func() { _ = w.Run(context.Background()) }()
	for !w.Synced() {
		<-changed
	}
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 1
	}
	fmt.Printf("pods %d\n%s", len(w.Pods()), status)
	return 0
}

// crowd calls each with the pods of a node that its tenants wish ill.
func crowd(n counts, each func(*corev1.Pod)) {
	long := strings.Repeat("x", annotationBytes)
	pod := func(kind string, i int, phase corev1.PodPhase) *corev1.Pod {
		name := fmt.Sprint(kind, "-", i)
		return &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7", Annotations: map[string]string{"a.example/long": long}},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
			Status:     corev1.PodStatus{Phase: phase, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		}
	}
	for i := range n.failed {
		each(pod("failed", i, corev1.PodFailed))
	}
	for i := range n.ended {
		p := pod("ended", i, corev1.PodSucceeded)
		p.Annotations = map[string]string{"a": "b"}
		each(p)
	}
	env := make([]corev1.EnvVar, 2000)
	for i := range env {
		env[i] = corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "x"}
	}
	for i := range n.running {
		p := pod("runs", i, corev1.PodRunning)
		p.Labels = map[string]string{}
		for j := range 5000 {
			p.Labels[fmt.Sprint("label-", j)] = strings.Repeat("v", 63)
		}
		p.Spec.Containers[0].Env = env
		each(p)
	}
}

// TestMemoryOfLargePods: what a node's pods cost the agent stays far below the limit that the chart sets, while they are read too,
// whether the API server streams them or lists them.
func TestMemoryOfLargePods(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*testing.T, http.ResponseWriter, *http.Request)
		counts counts
	}{"streamed": {stream, streamed}, "listed": {list, listed}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(t, w, r) }))
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), watchURL+"="+server.URL, fmt.Sprintf("GOMEMLIMIT=%dMiB", chartLimit(t)/4*3))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), fmt.Sprintf("pods %d\n", c.counts.failed+c.counts.ended+c.counts.running))
			most := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(out)
			require.NotNil(t, most, "%s", out)
			kib, err := strconv.Atoi(string(most[1]))
			require.NoError(t, err)
			t.Logf("at most %d MiB; %s", kib>>10, regexp.MustCompile(`VmRSS:.*`).Find(out))
			assert.Less(t, kib, chartLimit(t)<<10/2)
		})
	}
}

// chartLimit is the chart's memory limit for the agent, in MiB.
func chartLimit(t *testing.T) int {
	t.Helper()
	values, err := os.ReadFile("../../../deploy/helm/meshcni/values.yaml")
	require.NoError(t, err)
	_, agent, ok := strings.Cut(string(values), "\nresources:\n")
	require.True(t, ok)
	_, limits, ok := strings.Cut(agent, "  limits:\n")
	require.True(t, ok)
	limit := regexp.MustCompile(`memory: (\d+)Mi`).FindStringSubmatch(limits)
	require.NotNil(t, limit)
	mib, err := strconv.Atoi(limit[1])
	require.NoError(t, err)
	return mib
}

// stream sends a part as events, in JSON, with the bookmark that says that these were all.
func stream(t *testing.T, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("sendInitialEvents") == "" {
		<-r.Context().Done()
		return
	}
	to := json.NewEncoder(w)
	crowd(streamed, func(p *corev1.Pod) { assert.NoError(t, to.Encode(object{"type": "ADDED", "object": p})) })
	assert.NoError(t, to.Encode(object{"type": "BOOKMARK", "object": object{"kind": "Pod", "apiVersion": "v1", "metadata": object{
		"resourceVersion": "8", "annotations": object{metav1.InitialEventsAnnotationKey: "true"},
	}}}))
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// list sends all as one list in protobuf, as an API server does that streams none.
func list(t *testing.T, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	switch {
	case q.Get("sendInitialEvents") != "":
		http.Error(w, "not here", http.StatusBadRequest)
		return
	case q.Get("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	field := func(number, size int) []byte {
		return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number<<3|2)), uint64(size))
	}
	meta, err := (&metav1.ListMeta{ResourceVersion: "8"}).Marshal()
	assert.NoError(t, err)
	kind := append(append(field(1, 2), "v1"...), append(field(2, 7), "PodList"...)...)
	var size int
	begin := append(field(1, len(meta)), meta...)
	crowd(listed, func(p *corev1.Pod) { size += len(field(2, p.Size())) + p.Size() })
	for _, b := range [][]byte{[]byte("k8s\x00"), field(1, len(kind)), kind, field(2, len(begin)+size), begin} {
		_, _ = w.Write(b)
	}
	crowd(listed, func(p *corev1.Pod) {
		text, err := p.Marshal()
		assert.NoError(t, err)
		_, err = io.Copy(w, io.MultiReader(bytes.NewReader(field(2, len(text))), bytes.NewReader(text)))
		assert.NoError(t, err)
	})
}
