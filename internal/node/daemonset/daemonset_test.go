//go:build linux

package daemonset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	nodeapi "github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// server answers in memory, so that time can be made up. An answer is a status code and a body; a body may be open, as that
// of a watch is.
type server struct {
	mu     sync.Mutex
	answer func(r *http.Request) (int, io.ReadCloser, error)
	asked  []string
}

// client asks the server.
func (s *server) client(node string) func() (*nodeapi.Client, error) {
	return func() (*nodeapi.Client, error) {
		return nodeapi.New(meshcni.Identity{}, &rest.Config{Host: "https://[::1]:8080/k8s", Transport: s}, node)
	}
}

// questions are what was asked so far.
func (s *server) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (w *Watch) state() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	what := r.URL.Path
	if r.URL.Query().Has("fieldSelector") {
		what = "list"
	}
	if r.URL.Query().Has("watch") {
		what = "watch " + r.URL.Query().Get("resourceVersion")
	}
	s.asked = append(s.asked, what)
	answer := s.answer
	s.mu.Unlock()
	code, body, err := answer(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Body: body, Request: r, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func (s *server) set(answer func(r *http.Request) (int, io.ReadCloser, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func text(code int, body string) func(*http.Request) (int, io.ReadCloser, error) {
	return func(*http.Request) (int, io.ReadCloser, error) {
		return code, io.NopCloser(strings.NewReader(body)), nil
	}
}

// now is when what is being deleted began to be.
const now = "2026-01-01T00:00:00Z"

func meta(uid, version, deleted string) string {
	o := object{}
	o.APIVersion, o.Kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	o.Name, o.UID, o.ResourceVersion = "agent", types.UID(uid), version
	if deleted != "" {
		o.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	b, _ := json.Marshal(o)
	return string(b)
}

func listOf(version string, items ...string) string {
	return fmt.Sprintf(`{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","metadata":{"resourceVersion":%q},"items":[%s]}`, version, strings.Join(items, ","))
}

func event(kind, object string) string {
	return fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", kind, object)
}

// watching runs a Watch in a bubble against a server that has one DaemonSet, and whose watch says what is written to it.
func watching(t *testing.T, test func(t *testing.T, w *Watch, s *server, say func(events ...string), log *proctest.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, log := &server{}, &proctest.Buffer{}
		stream := make(chan string)
		s.set(func(r *http.Request) (int, io.ReadCloser, error) {
			if !r.URL.Query().Has("watch") {
				return text(http.StatusOK, listOf("10", meta("one", "5", "")))(r)
			}
			read, write := io.Pipe()
			go func() {
				for {
					select {
					case e := <-stream:
						if e == "" { // in order
							_ = write.Close()
							return
						}
						_, _ = io.WriteString(write, e)
					case <-r.Context().Done():
						_ = write.CloseWithError(r.Context().Err())
						return
					}
				}
			}()
			return http.StatusOK, read, nil
		})
		w := New(Source{
			API: s.client("n1"), Namespace: "mesh", Name: "agent", Node: "n1",
		}, slog.New(slog.NewTextHandler(log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			w.Run(ctx)
			close(done)
		}()
		synctest.Wait()
		test(t, w, s, func(events ...string) {
			for _, e := range events {
				stream <- e
				synctest.Wait()
			}
		}, log)
		cancel()
		<-done
	})
}

// down is what the last question meets.
var down = map[string]func(*http.Request) (int, io.ReadCloser, error){
	"401": text(http.StatusUnauthorized, "{}"),
	"403": text(http.StatusForbidden, "{}"),
	"500": text(http.StatusInternalServerError, "{}"),
	"refused": func(*http.Request) (int, io.ReadCloser, error) {
		return 0, nil, errors.New("connection refused")
	},
	"silent": func(r *http.Request) (int, io.ReadCloser, error) {
		<-r.Context().Done()
		return 0, nil, r.Context().Err()
	},
	"cut":        text(http.StatusOK, `{"metadata":{"uid":"on`),
	"not theirs": text(http.StatusOK, `<html>`),
	"no object":  text(http.StatusOK, `{}`),
}

// TestTheWatchsWord: whatever the last question meets that is no answer, what was seen before counts.
func TestTheWatchsWord(t *testing.T) {
	for seen, c := range map[string]struct {
		events  []string
		leaving bool
		why     string
	}{
		"nothing":           {nil, false, "is there"},
		"changed":           {[]string{event("MODIFIED", meta("one", "11", ""))}, false, "is there"},
		"bookmark":          {[]string{event("BOOKMARK", meta("", "12", ""))}, false, "is there"},
		"deleting":          {[]string{event("MODIFIED", meta("one", "11", now))}, true, "is being deleted"},
		"deleted":           {[]string{event("DELETED", meta("one", "11", ""))}, true, "is deleted"},
		"made anew":         {[]string{event("DELETED", meta("one", "11", "")), event("ADDED", meta("two", "12", ""))}, false, "another one"},
		"deleting anew":     {[]string{event("DELETED", meta("one", "11", "")), event("ADDED", meta("two", "12", now))}, false, "another one"},
		"deleted twice":     {[]string{event("DELETED", meta("one", "11", "")), event("ADDED", meta("two", "12", "")), event("DELETED", meta("two", "13", ""))}, true, "is deleted"},
		"deleted, then end": {[]string{event("DELETED", meta("one", "11", "")), ""}, true, "is deleted"},
	} {
		for met, answer := range down {
			t.Run(seen+"/"+met, func(t *testing.T) {
				watching(t, func(t *testing.T, w *Watch, s *server, say func(...string), _ *proctest.Buffer) {
					say(c.events...)
					s.set(answer)
					began := time.Now()
					leaving, why := w.Leaving(t.Context())
					assert.Equal(t, c.leaving, leaving, why)
					assert.Contains(t, why, c.why)
					assert.LessOrEqual(t, time.Since(began), Bound)
				})
			})
		}
	}
}

// TestTheLastQuestion: an answer counts more than what was seen.
func TestTheLastQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		daemonset, namespace func(*http.Request) (int, io.ReadCloser, error)
		leaving              bool
	}{
		"there":                 {text(200, meta("one", "5", "")), text(200, meta("ns", "1", "")), false},
		"gone":                  {text(404, "{}"), nil, true},
		"deleting":              {text(200, meta("one", "5", now)), nil, true},
		"another":               {text(200, meta("two", "5", "")), nil, false},
		"namespace deleting":    {text(200, meta("one", "5", "")), text(200, meta("ns", "1", now)), true},
		"namespace not allowed": {text(200, meta("one", "5", "")), text(403, "{}"), false},
		"namespace silent":      {text(200, meta("one", "5", "")), down["silent"], false},
	} {
		t.Run(name, func(t *testing.T) {
			watching(t, func(t *testing.T, w *Watch, s *server, _ func(...string), _ *proctest.Buffer) {
				s.set(func(r *http.Request) (int, io.ReadCloser, error) {
					if strings.HasSuffix(r.URL.Path, "/namespaces/mesh") {
						return c.namespace(r)
					}
					return c.daemonset(r)
				})
				leaving, why := w.Leaving(t.Context())
				assert.Equal(t, c.leaving, leaving, why)
			})
		})
	}
}

// TestTheNodeIsNotWanted: only an answer that shows the DaemonSet and the node, whole, is a reason to leave.
func TestTheNodeIsNotWanted(t *testing.T) {
	set := func(uid, spec string) func(*http.Request) (int, io.ReadCloser, error) {
		return text(200, fmt.Sprintf(`{"metadata":{"name":"agent","uid":%q},"spec":{"template":{"spec":{"containers":[{"name":"agent"}]%s}}}}`, uid, spec))
	}
	node := func(name, labels, spec string) func(*http.Request) (int, io.ReadCloser, error) {
		return text(200, fmt.Sprintf(`{"metadata":{"name":%q,"uid":"n","labels":{%s}},"spec":{%s}}`, name, labels, spec))
	}
	const selects, mesh = `,"nodeSelector":{"mesh":"on"}`, `"mesh":"on"`
	gpu, cordoned := `"taints":[{"key":"gpu","effect":"NoExecute"}]`, `"unschedulable":true,"taints":[{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"}]`
	for name, c := range map[string]struct {
		set, node func(*http.Request) (int, io.ReadCloser, error)
		leaving   bool
		why       string
	}{
		"wanted":            {set("one", selects), node("n1", mesh, ""), false, "is there"},
		"cordoned":          {set("one", selects), node("n1", mesh, cordoned), false, "is there"},
		"without the label": {set("one", selects), node("n1", "", ""), true, `does not want the node "n1": its nodeSelector`},
		"tainted":           {set("one", ""), node("n1", "", gpu), true, "the taint gpu:NoExecute"},
		"another node":      {set("one", selects), node("n2", "", ""), false, "cannot be told"},
		"another DaemonSet": {set("two", selects), node("n1", "", ""), false, "cannot be told"},
		"no such node":      {set("one", selects), text(404, "{}"), false, "cannot be told"},
		"metadata alone":    {text(200, meta("one", "5", "")), node("n1", "", gpu), false, "cannot be told"},
		"DaemonSet silent":  {down["silent"], node("n1", "", ""), false, "cannot be told"},
		"node forbidden":    {set("one", selects), down["403"], false, "cannot be told"},
		"node silent":       {set("one", selects), down["silent"], false, "cannot be told"},
		"node cut":          {set("one", selects), down["cut"], false, "cannot be told"},
		"node not theirs":   {set("one", selects), down["not theirs"], false, "cannot be told"},
		"node no object":    {set("one", selects), down["no object"], false, "cannot be told"},
	} {
		t.Run(name, func(t *testing.T) {
			watching(t, func(t *testing.T, w *Watch, s *server, _ func(...string), _ *proctest.Buffer) {
				s.set(func(r *http.Request) (int, io.ReadCloser, error) {
					switch {
					case strings.HasSuffix(r.URL.Path, "/nodes/n1"):
						return c.node(r)
					case strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata"):
						return text(200, meta("one", "5", ""))(r)
					}
					return c.set(r)
				})
				began := time.Now()
				leaving, why := w.Leaving(t.Context())
				assert.Equal(t, c.leaving, leaving, why)
				assert.Contains(t, why, c.why)
				assert.LessOrEqual(t, time.Since(began), Bound)

				if c.leaving {
					w.api.source.Node, w.api.source.API = "", s.client("")
					leaving, why = w.Leaving(t.Context())
					assert.False(t, leaving, "a node without a name")
					assert.Contains(t, why, "--node-name")
				}
			})
		})
	}
}

// TestTheRightGoesFirst: an uninstall deletes the DaemonSet and the right to read it, and the agent may be ended before its watch tells.
func TestTheRightGoesFirst(t *testing.T) {
	for name, leaves := range map[string]bool{"with the DaemonSet": true, "without it": false} {
		t.Run(name, func(t *testing.T) {
			watching(t, func(t *testing.T, w *Watch, s *server, say func(...string), _ *proctest.Buffer) {
				s.set(text(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
				if leaves {
					time.AfterFunc(time.Second, func() { say(event("DELETED", meta("one", "11", ""))) })
				}
				leaving, why := w.Leaving(t.Context())
				assert.Equal(t, leaves, leaving, why)
			})
		})
	}
}

// TestNeverSeen: a DaemonSet that was never there is not gone: its name may be wrong.
func TestNeverSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := &server{answer: text(http.StatusNotFound, "{}")}, &proctest.Buffer{}
		source := Source{
			API: s.client("n1"), Namespace: "mesh", Name: "agent",
		}
		leaving, why := New(source, slog.New(slog.NewTextHandler(log, nil))).Leaving(t.Context())
		assert.False(t, leaving)
		assert.Contains(t, why, "not known")

		// Nor is one that is deleting already when it is first seen, as after a restart of the container, a reason to stay.
		s.set(text(http.StatusOK, meta("one", "5", now)))
		leaving, _ = New(source, slog.New(slog.DiscardHandler)).Leaving(t.Context())
		assert.True(t, leaving)

		source.API = func() (*nodeapi.Client, error) { return nil, errors.New("no token") }
		leaving, why = New(source, slog.New(slog.DiscardHandler)).Leaving(t.Context())
		assert.False(t, leaving)
		assert.Contains(t, why, "no token")
	})
}

// TestGoesOn: the end of a watch, in order or not, an expired version, an outage.
func TestGoesOn(t *testing.T) {
	watching(t, func(t *testing.T, w *Watch, s *server, say func(...string), log *proctest.Buffer) {
		time.Sleep(time.Minute)
		say(event("BOOKMARK", meta("", "12", "")), "")
		assert.Equal(t, []string{"list", "watch 10", "watch 12"}, s.questions(), "it goes on from the bookmark")
		say(event("ERROR", `{"apiVersion":"v1","kind":"Status","code":410,"reason":"Expired","message":"too old"}`))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"list", "watch 10"}, s.questions()[3:], "it looks again")
		assert.Contains(t, log.String(), "cannot be watched")
		assert.Contains(t, log.String(), "watched again")

		up := s.answer
		s.set(down["refused"])
		lines := strings.Count(log.String(), "\n")
		say("")
		before := len(s.questions())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		asked := len(s.questions()) - before
		assert.Less(t, asked, 40, "with pauses between")
		assert.Greater(t, asked, 10, "of bounded length")
		assert.Equal(t, lines+1, strings.Count(log.String(), "\n"), "an outage is one line")
		s.set(up)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, lines+2, strings.Count(log.String(), "\n"))
		say(event("DELETED", meta("one", "20", "")))
		assert.Equal(t, gone, w.state())
	})
}

// TestAWatchThatEndsAtOnce is not asked for again without a pause.
func TestAWatchThatEndsAtOnce(t *testing.T) {
	watching(t, func(t *testing.T, _ *Watch, s *server, say func(...string), log *proctest.Buffer) {
		s.set(func(r *http.Request) (int, io.ReadCloser, error) {
			if r.URL.Query().Has("watch") {
				return text(http.StatusOK, "")(r)
			}
			return text(http.StatusOK, listOf("10", meta("one", "5", "")))(r)
		})
		say("")
		before := len(s.questions())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Less(t, len(s.questions())-before, 80)
		assert.NotContains(t, log.String(), "cannot be watched")
	})
}

// TestASilentServer: a server that takes the request and says nothing is given up.
func TestASilentServer(t *testing.T) {
	watching(t, func(t *testing.T, w *Watch, s *server, say func(...string), log *proctest.Buffer) {
		s.set(down["silent"])
		say(event("DELETED", meta("one", "20", "")), "")
		assert.Equal(t, gone, w.state())
		before := len(s.questions())
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Greater(t, len(s.questions()), before+3)
		assert.NotContains(t, log.String(), "cannot be watched", "there is no need to know more")
	})
}

func TestAsksForMetadataAlone(t *testing.T) {
	var got *http.Request
	s := &server{answer: func(r *http.Request) (int, io.ReadCloser, error) {
		got = r
		return text(http.StatusOK, listOf("1"))(r)
	}}
	a := api{source: Source{API: s.client("n1"), Namespace: "mesh", Name: "a.b"}}
	found, version, err := a.list(t.Context())
	require.NoError(t, err)
	assert.Nil(t, found)
	assert.Equal(t, "1", version)
	assert.Equal(t, "https://[::1]:8080/k8s/apis/apps/v1/namespaces/mesh/daemonsets?fieldSelector=metadata.name%3Da.b", got.URL.String())
	for accepted := range strings.SplitSeq(got.Header.Get("Accept"), ",") {
		if accepted != "application/json" { // of servers that cannot do it
			assert.Contains(t, accepted, ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
		}
	}
}
