//! API documents and the trajectories that call them, in one representation for all file formats.
//!
//! The retriever ranks documents, and prompts show them. A trajectory is a query, the calls that
//! solve it, and the answer (GOAT, section 3.1.2). Calls are identified by `tool/api`, because
//! several tools use the same API names.
//!
//! ```
//! use tooltune_apis::did_you_mean;
//!
//! assert!(did_you_mean("getWether", ["getWeather"].into_iter()).contains("getWeather"));
//! ```

pub mod budgets;
mod call_schema;
mod catalogue;
mod check;
mod cut_output;
mod declared;
pub mod declared_schema;
mod dialogues;
mod document;
mod endpoint;
mod error;
mod fields;
mod gold;
mod import;
mod output_description;
mod parameter_schema;
mod source;
mod trajectory;
mod trajectory_rows;
mod views;

pub use catalogue::ApiCatalogue;
pub use cut_output::{OUTPUT_LIMIT, cut_output};
pub use declared::{DeclaredBy, json_type};
pub use dialogues::{DialogueGold, DialogueStep, DialogueTurn, import_apibank_dialogues};
pub use document::{ApiDocument, ApiParameter};
pub use endpoint::{EndpointCall, EndpointTemplates};
pub use error::{ToolsError, did_you_mean};
pub use gold::{GoldCall, GoldPath, import_apibank_level3, import_restbench};
pub use import::{
    ApiBankSet, ApiOperation, ExampleResponses, ImportedApis, LeftOut, LocatedParameter,
    OpenApiOptions, OperationBody, OperationNames, ParameterLocation, ParameterStyle,
    RequestBodies, apibank_documents, import_apibank, import_mcp_file, import_mcp_tools,
    import_openapi, import_openapi_examples, import_openapi_examples_file, import_openapi_file,
    import_openapi_operations, import_openapi_operations_file, import_stabletoolbench,
};
pub use parameter_schema::ParameterSchema;
pub use source::{JsonLines, TextLines, read_json, read_text};
pub use trajectory::{Derived, Trajectory, TrajectoryCall};
pub use trajectory_rows::{
    CheckedTrajectories, TrajectoryReader, read_checked_trajectories, read_distinct_trajectories,
    read_trajectories,
};

pub use fields::Fields;
