package nodeevents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/status"
)

// fakeServer stores events, and answers as its faults say first.
type fakeServer struct {
	faults []int // HTTP status; 0: no answer
	asked  int
	stored []corev1.Event
}

// RoundTrip implements [http.RoundTripper].
func (f *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	f.asked++
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	answer := func(code int, v any) (*http.Response, error) {
		text, err := json.Marshal(v)
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
	}
	if len(f.faults) > 0 {
		code := f.faults[0]
		f.faults = f.faults[1:]
		if code == 0 {
			return nil, errors.New("connection refused")
		}
		return answer(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), //nolint:gosec // a test's
			Reason: map[int]metav1.StatusReason{404: metav1.StatusReasonNotFound, 403: metav1.StatusReasonForbidden}[code]})
	}
	if r.Method == http.MethodPatch {
		for i := range f.stored {
			if strings.HasSuffix(r.URL.Path, "/"+f.stored[i].Name) {
				if err := json.Unmarshal(body, &f.stored[i]); err != nil {
					return nil, err
				}
				return answer(http.StatusOK, f.stored[i])
			}
		}
		return answer(http.StatusNotFound, metav1.Status{})
	}
	var e corev1.Event
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, err
	}
	f.stored = append(f.stored, e)
	return answer(http.StatusCreated, e)
}

// sending starts a sink of events that go to a server, and ends it with the test.
func sending(t *testing.T, f *fakeServer) (e *Events, log *bytes.Buffer) {
	t.Helper()
	c, err := api.New(meshcni.Identity{}, &rest.Config{Host: "http://server.test", Transport: f, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, "n")
	require.NoError(t, err)
	log = &bytes.Buffer{}
	e, stop := Source{API: func() (*api.Client, error) { return c, nil }, Component: "c", Node: "n", Log: slog.New(slog.NewTextHandler(log, nil))}.Start()
	t.Cleanup(stop)
	return e, log
}

func fight(text string) status.News { return status.News{Code: "fight", Text: text, Attention: true} }

// An event is sent until the API server has an answer that stands; for two minutes, others wait that long.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults        []int
		asked, stored int
		after         time.Duration
	}{
		"at once":                 {nil, 2, 2, 0},
		"away, then overloaded":   {[]int{0, 503, 429}, 5, 2, 3 * pause},
		"refused":                 {[]int{403}, 2, 1, 0},
		"away for long":           {make([]int, tries), tries + 1, 1, (tries - 1) * pause},
		"refused after some time": {[]int{0, 403}, 3, 1, pause},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fakeServer{faults: c.faults}
				e, log := sending(t, f)
				start := time.Now()
				e.OfNode(fight("one"))
				e.OfNode(fight("two"))
				time.Sleep(c.after)
				synctest.Wait()
				assert.Equal(t, c.asked, f.asked)
				assert.Len(t, f.stored, c.stored)
				assert.Equal(t, c.after, time.Since(start))
				assert.Equal(t, min(len(c.faults), 1), strings.Count(log.String(), "events cannot be sent"), "%s", log)
			})
		})
	}
}

// An event whose first is deleted by the time it happens again is a new one.
func TestCountedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{}
		e, _ := sending(t, f)
		for range 3 {
			e.OfNode(fight("one"))
		}
		synctest.Wait()
		require.Len(t, f.stored, 1)
		assert.EqualValues(t, 3, f.stored[0].Count)
		time.Sleep(time.Hour)
		f.faults = []int{404}
		e.OfNode(fight("one"))
		synctest.Wait()
		require.Len(t, f.stored, 2)
		assert.EqualValues(t, 1, f.stored[1].Count)
		assert.NotEqual(t, f.stored[0].Name, f.stored[1].Name)
	})
}

// What goes round and round about one object does not fill the API server, nor does it keep others from being told.
func TestManyAboutOneObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{}
		e, _ := sending(t, f)
		pod := func(name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u"}}
		}
		tell := func(name string, from, to int) {
			for i := from; i < to; i++ {
				e.Recorder("repair").Event(pod(name), corev1.EventTypeWarning, "Fight", fmt.Sprint("the ", i, "th"))
			}
			time.Sleep(time.Second) // the client has a rate, too
			synctest.Wait()
		}
		tell("web", 0, 100)
		assert.Len(t, f.stored, atOnce)
		tell("cart", 0, 1)
		assert.Len(t, f.stored, atOnce+1)
		assert.Equal(t, "shop", f.stored[atOnce].Namespace)
		assert.Equal(t, corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "shop", Name: "cart", UID: "u"}, f.stored[atOnce].InvolvedObject)
		time.Sleep(again)
		tell("web", 100, 110)
		assert.Len(t, f.stored, atOnce+2)
	})
}

func TestNameOfAnEvent(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "web.f", name("web", 15))
	long := name(strings.Repeat("a", 245)+"."+strings.Repeat("b", 7), 0x123456)
	assert.Equal(t, strings.Repeat("a", 245)+".123456", long)
	assert.LessOrEqual(t, len(long), 253)
}
