package kube_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/repair/internal/kube"
)

// TestServerWithoutWords: whatever a server, or a proxy before it, answers to the question what is permitted, the error says something,
// and what it was about.
func TestServerWithoutWords(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		status int
		body   string
		says   string
	}{
		"a status without a message": {http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, "403 (Forbidden)"},
		"nor a reason":               {http.StatusTeapot, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":418}`, "418 (no reason)"},
		"a blank message":            {http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":" \n","reason":"Conflict","code":409}`, "409 (Conflict)"},
		"a message":                  {http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"ask Ann","reason":"Forbidden","code":403}`, "ask Ann"},
		"no body":                    {http.StatusBadGateway, "", "502"},
		"a page":                     {http.StatusForbidden, "<html>", "403"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(answer.status)
				_, _ = w.Write([]byte(answer.body))
			}))
			defer s.Close()
			c, err := kube.New(meshcni.Identity{}, &rest.Config{Host: s.URL}, "node")
			require.NoError(t, err)
			missing, err := c.Missing(t.Context(), (kube.Uses{Delete: true}).Permissions())
			require.ErrorContains(t, err, "ask whether it is permitted to list pods: ")
			assert.Empty(t, missing, "nobody knows")
			assert.Equal(t, 1, asked, "the rest would fail alike")
			if name != "no body" && name != "a page" {
				assert.ErrorContains(t, err, answer.says)
				var status apierrors.APIStatus
				assert.ErrorAs(t, err, &status)
			}
		})
	}
}
