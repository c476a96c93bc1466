package status

// Reasons of a pod that programs compare, beside those of a decision. The table has all.
const (
	CodeNotCalled        Code = "not-called"        // its network was set up without the plugin
	CodePodRefused       Code = "pod-refused"       // it does not start, since its settings are refused
	CodeNamespaceUnknown Code = "namespace-unknown" // the labels of its namespace decide, and cannot be read
)
