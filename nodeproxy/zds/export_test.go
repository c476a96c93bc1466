package zds

const MaxMessage = maxMessage

var (
	MarshalHello    = marshalHello
	MarshalResponse = marshalResponse
	ParseHello      = parseHello
	ParseRequest    = parseRequest
)
