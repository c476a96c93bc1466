// Package apianswer tells an API server's answers from those of what stands in front of it: a company's proxy, a load balancer, a login
// page. A 403 of these is no 403 of RBAC.
package apianswer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// Foreign is an answer that no API server gives.
type Foreign struct {
	Code int
	text string
}

// Error quotes the answer with its status, and names what gave it as far as it says so.
func (e *Foreign) Error() string { return e.text }

// Magic begins what the API server writes as protobuf.
var Magic = []byte("k8s\x00")

// Of returns nil for an answer of an API server: an object of its API, which is a Status unless the request succeeded.
func Of(answer *http.Response, body []byte) *Foreign {
	var object runtime.Unknown
	if text, binary := bytes.CutPrefix(body, Magic); binary {
		_ = object.Unmarshal(text) // what is no object has no kind
	} else {
		_ = json.Unmarshal(body, &object.TypeMeta)
	}
	if object.Kind == "Status" || object.Kind != "" && answer.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	said := "nothing else"
	switch {
	case object.Kind != "":
		said = fmt.Sprintf("it is %s of %s", truncate.Quote(object.Kind), truncate.Quote(object.APIVersion))
	case len(body) > 0:
		said = truncate.Quote(words(string(body[:min(len(body), 2048)])))
	}
	from := ""
	if answer.Request != nil {
		from = " from " + answer.Request.URL.Scheme + "://" + answer.Request.URL.Host
	}
	for _, header := range []string{"Server", "Via"} {
		if value := answer.Header.Get(header); value != "" {
			from += ", " + header + " " + truncate.Quote(value)
		}
	}
	status := fmt.Sprintf("%d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	return &Foreign{Code: answer.StatusCode, text: fmt.Sprintf("no API server's answer, but %s%s: %s", strings.TrimSpace(status), from, said)}
}

// words returns the text of a page of HTML, and any other text as it is, with a space for all white space.
func words(page string) string {
	var b strings.Builder
	for rest, more := page, true; more; {
		var text string
		text, rest, more = strings.Cut(rest, "<")
		b.WriteString(text + " ")
		if more {
			_, after, closed := strings.Cut(rest, ">")
			if !closed {
				b.WriteString("<" + rest)
				break
			}
			rest = after
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// Direct is the Proxy of a transport that asks for none, whatever the environment says.
func Direct(*http.Request) (*url.URL, error) { return nil, nil }

// Through names the proxy in an error of a request that went through one; where says where it comes from.
func Through(proxy *url.URL, where string, err error) error {
	if proxy == nil || err == nil {
		return err
	}
	return fmt.Errorf("through proxy %s, of %s: %w", proxy.Redacted(), where, err)
}

// Checked makes errors of the answers that no API server gives, and names the proxy in those and in others. setting is where the
// proxy comes from, and if it is empty, the environment.
func Checked(next http.RoundTripper, proxy func(*http.Request) (*url.URL, error), setting string) http.RoundTripper {
	return checked{next, proxy, setting}
}

type checked struct {
	next    http.RoundTripper
	proxy   func(*http.Request) (*url.URL, error)
	setting string
}

// mostRead bounds what is read of an answer that is no success.
const mostRead = 64 << 10

// RoundTrip implements [http.RoundTripper].
func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if err == nil {
		err = inspect(answer)
	}
	if err == nil {
		return answer, nil
	}
	used, _ := c.proxy(r) // one that cannot be told has not been used
	return nil, Through(used, cmp.Or(c.setting, strings.ToUpper(r.URL.Scheme)+"_PROXY in the environment"), err)
}

// inspect leaves the texts that a real server has where there is no Status: of an API that it does not know, and of being busy, which
// client-go heeds.
func inspect(answer *http.Response) error {
	success := answer.StatusCode < http.StatusMultipleChoices
	html := strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html")
	if success && !html || answer.StatusCode == http.StatusNotModified || answer.Header.Get("Retry-After") != "" {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostRead))
	if err != nil {
		_ = answer.Body.Close()
		return fmt.Errorf("read the answer %s: %w", answer.Status, err)
	}
	if foreign := Of(answer, body); foreign != nil && strings.TrimSpace(string(body)) != "404 page not found" {
		_ = answer.Body.Close()
		return foreign
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), answer.Body), answer.Body}
	return nil
}

// WrappedRoundTripper lets client-go find the transport, to close its idle connections.
func (c checked) WrappedRoundTripper() http.RoundTripper { return c.next }
