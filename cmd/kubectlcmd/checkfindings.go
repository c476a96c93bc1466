package kubectlcmd

import (
	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/status"
)

// The codes of findings, which package status explains.
const (
	codeNoAgents         status.Code = "no-agents"
	codeNodeWithoutAgent status.Code = "node-without-agent"
	codeNodeUnwanted     status.Code = "node-unwanted"
	codeAgentSilent      status.Code = "agent-silent"
	codeAgentRights      status.Code = "agent-rights"
	codeNodeNotReady     status.Code = "node-not-ready"
	codeNodeWarning      status.Code = "node-warning"
	codeConfigRefused    status.Code = "config-refused"
	codeNotEvicting      status.Code = "not-evicting"
	codeOtherMesh        status.Code = "other-mesh"
	codeNotInstalled     status.Code = "not-installed"
	codeNotLoaded        status.Code = "not-loaded"
	codeNotLast          status.Code = "not-last"
	codeCNIVersionOld    status.Code = "cni-version-old"
	codeUnknownKeys      status.Code = "unknown-keys"
	codeNoBackend        status.Code = "no-backend"
	codeVersionsDiffer   status.Code = "versions-differ"
	codeSettingsDiffer   status.Code = "settings-differ"
	codePodBypasses      status.Code = "pod-bypasses"
	codePodDrifted       status.Code = "pod-drifted"
	codePodWaiting       status.Code = "pod-waiting"
	codeExcludedInjected status.Code = "excluded-injected"
	codeOwnInit          status.Code = "own-init"
	codeOtherDialect     status.Code = "other-dialect"
	codePodRefused       status.Code = "pod-refused"
	codePodsNotKnown     status.Code = "pods-not-known"
	codeConfigurationOdd status.Code = "configuration-wrong"
	codePlaceNotMounted  status.Code = "place-not-mounted"
	codePlaceUnusable    status.Code = "place-unusable"
	codePlaceDiffers     status.Code = "place-differs"
	codeProgramMissing   status.Code = "program-missing"
	codeProgramDiffers   status.Code = "program-differs"
	codePluginsElsewhere status.Code = "plugins-elsewhere"
	codeInjectorExcluded status.Code = "injector-excluded"
	codeInjectorDown     status.Code = "injector-down"
	codeInjectorMissed   status.Code = "injector-missed"
	codeNoInjector       status.Code = "no-injector"
	codeInjectorUnknown  status.Code = "injector-unknown"
)

// The levels of a finding.
const (
	levelError   = "error"   // pods bypass the mesh, or do not start
	levelWarning = "warning" // somebody should look at it
	levelUnknown = "unknown" // it could not be found out
)

// finding is something that check has found.
type finding struct {
	Code  status.Code `json:"code"`
	Level string      `json:"level"`
	// Where names the objects, such as node/a or pod/shop/cart, maxWhere at most; Count is how many there are.
	Where []string `json:"where,omitempty"`
	Count int      `json:"count"`
	Text  string   `json:"text"`
	// Remedy helps.
	Remedy string `json:"remedy"`
	Page   string `json:"page"`
}

// maxWhere bounds the objects that a finding names.
const maxWhere = 10

// findings gathers what is found. The same text of several objects is one finding.
type findings struct {
	product meshcni.Identity
	all     []*finding
	known   map[[2]string]*finding
}

func (f *findings) add(code status.Code, level, where, text string) {
	key := [2]string{string(code), text}
	x := f.known[key]
	if x == nil {
		row, _ := status.Lookup(status.KindFinding, code)
		x = &finding{Code: code, Level: level, Text: text, Remedy: row.For(f.product).Remedy(), Page: row.URL(f.product)}
		f.known[key] = x
		f.all = append(f.all, x)
	}
	x.Count++
	if where != "" && len(x.Where) < maxWhere {
		x.Where = append(x.Where, where)
	}
}
